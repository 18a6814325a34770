"""Files, commands and Python in the current folder, as the documents name them (seed 003)."""

from pathlib import Path

from task.closing import run_blocking
from task.tools.workspace import files
from task.tools.workspace.commands import Commands, PyRunResult, ShellResult, run_python
from task.tools.workspace.files import FSResult
from task.tools.workspace.root import Workspace


def fs_read(path: str, first_line: int | None = None, last_line: int | None = None) -> FSResult:
    """Read a UTF-8 text file, or lines of it (counted from 1)."""
    with Workspace(Path.cwd()) as here:
        return files.read(here, path, first_line, last_line)


def fs_write(path: str, content: str) -> FSResult:
    """Write a UTF-8 text file, in one step and with its folders."""
    with Workspace(Path.cwd()) as here:
        return files.write(here, path, content)


def fs_list(path: str) -> FSResult:
    """List a folder; folders end in a slash."""
    with Workspace(Path.cwd()) as here:
        return files.listed(here, path)


def fs_edit(path: str, old_text: str, new_text: str, replace_all: bool = False) -> FSResult:
    """Replace a text that occurs exactly once in a file, or all its occurrences."""
    with Workspace(Path.cwd()) as here:
        return files.edit(here, path, old_text, new_text, replace_all=replace_all)


def fs_search(
    pattern: str, path: str = ".", regex: bool = False, glob: str = "", ignore_case: bool = False
) -> FSResult:
    """Find the lines below a folder that contain a text or match a regular expression."""
    with Workspace(Path.cwd()) as here:
        return files.search(here, path, pattern, regex=regex, glob=glob, ignore_case=ignore_case)


def _safe_path(path: str) -> Path:
    with Workspace(Path.cwd()) as here:
        return here.path / here.normalised(path)


def shell_run(cmd: str) -> ShellResult:
    """Run a command in the current directory. Source: planner and executor reference, shell_run."""
    return run_blocking(shell_run_async, cmd)


async def shell_run_async(cmd: str) -> ShellResult:
    """The asynchronous twin of `shell_run`."""
    with Workspace(Path.cwd()) as workspace:
        async with Commands(workspace) as commands:
            return await commands.run(cmd)


def python_run(mode: str, code: str | None = None) -> PyRunResult:
    """Run pytest ("pytest") or code ("snippet") in the current directory. Source: the reference, python_run."""
    return run_blocking(python_run_async, mode, code)


async def python_run_async(mode: str, code: str | None = None) -> PyRunResult:
    """The asynchronous twin of `python_run`."""
    with Workspace(Path.cwd()) as workspace:
        async with Commands(workspace) as commands:
            return await run_python(commands, mode, code)
