"""One child process with its whole group: started, its lines passed on, ended for certain."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

PR_SET_PDEATHSIG = 1
LONGEST_LINE = 32_768
DRAIN_SECONDS = 1.0

Write = Callable[[str, str], None]  # (program's name, line)


@dataclass(frozen=True, slots=True)
class Program:
    """A process of the product: how to start it and where it says that it is ready.

    An optional one is neither waited for by the others nor missed so much that the product ends without it.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    health_url: str | None = None
    start_seconds: float = 60
    optional: bool = False


class Child:
    """A running program. Its process group ends with it, and it ends with this process."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process, write: Write) -> None:
        self.program = program
        self.started = time.monotonic()
        self._process = process
        self._lines = asyncio.create_task(_pass_on(process.stdout, lambda line: write(program.name, line)))
        self.exited = asyncio.create_task(self._exit_code())

    @classmethod
    async def start(cls, program: Program, write: Write) -> Child:
        """Start the program in a process group of its own."""
        process = await asyncio.create_subprocess_exec(
            *program.command,
            env=dict(program.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()),
        )
        return cls(program, process, write)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    async def end(self, grace: float) -> None:
        """Ask the group to end, and kill what is left of it after `grace` seconds."""
        self._signal(signal.SIGTERM)
        await asyncio.wait({self.exited}, timeout=grace)
        self.kill()
        await asyncio.wait({self.exited})  # not the task itself: who is cancelled here would cancel it for all

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _exit_code(self) -> int:
        code = await self._process.wait()
        self.kill()  # what it started and left behind
        await asyncio.wait({self._lines}, timeout=DRAIN_SECONDS)
        self._lines.cancel()
        return code


def ending(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _end_with(parent: int) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before prctl took effect
            os._exit(1)

    return die_with_parent


async def _pass_on(stream: asyncio.StreamReader | None, write: Callable[[str], None]) -> None:
    rest = b""
    while stream is not None and (data := await stream.read(65_536)):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            write(line.decode("utf-8", "replace").rstrip("\r"))
        if len(rest) > LONGEST_LINE:
            write(rest.decode("utf-8", "replace"))
            rest = b""
    if rest:
        write(rest.decode("utf-8", "replace"))
