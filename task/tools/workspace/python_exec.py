"""Run pytest or a snippet of Python in a workspace, inside the sandbox launcher."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

from task.blocking import run_blocking
from task.tools.workspace.root import Workspace
from task.tools.workspace.shell import Commands, ShellResult

INVALID_CODE = 2


class PyRunResult(ShellResult):
    """What a run of Python left. Source: planner and executor reference, PyRunResult."""


async def run_python(
    commands: Commands, mode: str, code: str | None = None, seconds: float | None = None
) -> PyRunResult:
    """Run pytest ("pytest") or code ("snippet") with the workspace's Python."""
    if mode == "pytest":
        done = await commands.run_words([commands.python, "-m", "pytest", "-q"], seconds)
    elif mode != "snippet":
        done = ShellResult(False, "", f"unknown mode: {mode}", INVALID_CODE)
    elif not code:
        done = ShellResult(False, "", "no code provided", INVALID_CODE)
    else:
        # A file of its own, so that tracebacks show its lines; the workspace's modules can be imported all the same.
        file = commands.scratch.path / f"snippet-{token_hex(4)}.py"
        file.write_text(code, errors="replace")
        try:
            variables = {"PYTHONPATH": str(commands.workspace.path)}
            done = await commands.run_words([commands.python, str(file)], seconds, variables)
        finally:
            file.unlink(missing_ok=True)
    return PyRunResult(done.ok, done.stdout, done.stderr, done.code)


def python_run(mode: str, code: str | None = None) -> PyRunResult:
    """Run pytest ("pytest") or code ("snippet") in the current directory. Source: the reference, python_run."""
    return run_blocking(python_run_async, mode, code)


async def python_run_async(mode: str, code: str | None = None) -> PyRunResult:
    """The asynchronous twin of `python_run`."""
    with Workspace(Path.cwd()) as workspace:
        async with Commands(workspace) as commands:
            return await run_python(commands, mode, code)
