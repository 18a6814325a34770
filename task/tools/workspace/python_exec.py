"""Run pytest or a snippet of Python in a workspace, inside the sandbox launcher."""

from __future__ import annotations

from pathlib import Path

from task.blocking import run_blocking
from task.tools.workspace.shell import Commands, ShellResult


class PyRunResult(ShellResult):
    """What a run of Python left. Source: planner and executor reference, PyRunResult."""


def python_run(mode: str, code: str | None = None) -> PyRunResult:
    """Run pytest ("pytest") or code ("snippet") in the current directory. Source: the reference, python_run."""
    return run_blocking(python_run_async, mode, code)


async def python_run_async(mode: str, code: str | None = None) -> PyRunResult:
    """The asynchronous twin of `python_run`."""
    from task.tools.workspace.root import Workspace

    async with Commands(Workspace(Path.cwd())) as commands:
        done = await commands.python(mode, code)
        return PyRunResult(done.ok, done.stdout, done.stderr, done.code)
