"""Run commands in a workspace, inside the sandbox launcher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from task.blocking import run_blocking

if TYPE_CHECKING:
    from task.tools.workspace.root import Workspace

BLOCKED_CODE, TIMEOUT_CODE = 126, 124
MIB = 1024 * 1024


@dataclass(frozen=True)
class ShellResult:
    """What a command left. Source: planner and executor reference, ShellResult."""

    ok: bool
    stdout: str
    stderr: str
    code: int

    @property
    def text(self) -> str:
        """The result as the model reads it."""
        state = f"OK (code {self.code})" if self.ok else f"ERROR (code {self.code})"
        return f"{state}\nSTDOUT:\n{self.stdout}\nSTDERR:\n{self.stderr}"


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of one command with everything it starts."""

    seconds: float = 60.0
    memory_bytes: int = 4096 * MIB
    file_bytes: int = 1024 * MIB
    processes: int = 256
    output_bytes: int = 64 * 1024


class Commands:
    """Runs commands in one workspace; `close` removes their scratch folder.

    `unsafe`: where no sandbox works, commands run without one rather than not at all.
    """

    def __init__(self, workspace: Workspace, limits: CommandLimits | None = None, *, unsafe: bool = False) -> None:
        self._workspace = workspace
        self._limits = limits or CommandLimits()
        self._unsafe = unsafe

    @property
    def available(self) -> str | None:
        """Why commands cannot be run here; None when they can. Takes a moment the first time."""
        return None

    def allowed(self, cmd: str) -> bool:
        """Whether the documented list allows every command of the line."""
        raise NotImplementedError

    async def run(self, cmd: str, seconds: float | None = None) -> ShellResult:
        """Run a command line that the lists allow; without network, and for at most `seconds`."""
        raise NotImplementedError

    async def setup(self, cmd: str, seconds: float | None = None) -> ShellResult:
        """Run a command line that a person has written, with the public internet, to install dependencies."""
        raise NotImplementedError

    async def python(self, mode: str, code: str | None = None, seconds: float | None = None) -> ShellResult:
        """Run pytest or a snippet with the workspace's Python."""
        raise NotImplementedError

    async def close(self) -> None:
        """Remove the scratch folder."""

    async def __aenter__(self) -> Commands:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def shell_run(cmd: str) -> ShellResult:
    """Run a command in the current directory. Source: planner and executor reference, shell_run."""
    return run_blocking(shell_run_async, cmd)


async def shell_run_async(cmd: str) -> ShellResult:
    """The asynchronous twin of `shell_run`."""
    from task.tools.workspace.root import Workspace

    async with Commands(Workspace(Path.cwd())) as commands:
        return await commands.run(cmd)
