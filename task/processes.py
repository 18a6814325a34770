"""Child processes: started in groups of their own, awaited until ready, restarted when they die, ended together."""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Self

import aiohttp

from task.errors import AgentError

FAILED, SETTING_WRONG = 1, 2  # exit codes; a program that ends with the second would do so again
PR_SET_PDEATHSIG = 1
LONGEST_LINE = 32_768
DRAIN_SECONDS = 1.0
POLL_SECONDS = 0.05
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=2)

Write = Callable[[str, str], None]  # (program's name, line)


@dataclass(frozen=True, slots=True)
class Program:
    """A process: how to start it, and the address that answers once it is ready.

    The others do not wait for an optional one, and the product runs on without it. `ready` decides instead of the
    address, by the process id; where its output is not `forwarded`, it writes where this process does. `held`: it has
    an open standard input, whose end tells it that this process has ended, on every system.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    health_url: str | None = None
    start_seconds: float = 60
    optional: bool = False
    ready: Callable[[int], bool] | None = None
    forwarded: bool = True
    held: bool = False


class ProgramFailed(AgentError):
    """A program that did not start or was given up; `exit_code` is what the supervisor should end with."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Child:
    """A running program. Its process group ends with it, and it ends with this process."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process, write: Write) -> None:
        self.program = program
        self.started = time.monotonic()
        self._process = process
        self._lines = asyncio.create_task(_forward_lines(process.stdout, partial(write, program.name)))
        self.exited = asyncio.create_task(self._exit_code())

    @classmethod
    async def start(cls, program: Program, write: Write) -> Self:
        """Start the program in a process group of its own."""
        process = await asyncio.create_subprocess_exec(
            *program.command,
            env=dict(program.environment),
            stdin=asyncio.subprocess.PIPE if program.held else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if program.forwarded else None,
            stderr=asyncio.subprocess.STDOUT if program.forwarded else None,
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
        await asyncio.wait({self.exited})  # awaiting the task itself would cancel it for all when we are cancelled

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _exit_code(self) -> int:
        code = await self._process.wait()
        self.kill()  # processes that it started and left behind
        await asyncio.wait({self._lines}, timeout=DRAIN_SECONDS)
        self._lines.cancel()
        return code


def ending(code: int) -> str:
    """How a program with this exit code ended; negative codes are signals."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@dataclass(frozen=True, slots=True)
class Restarts:
    """How a dead program is restarted: pauses double from `first_seconds`; a settled program counts from one again."""

    first_seconds: float = 0.5
    longest_seconds: float = 30
    attempts: int = 6
    settled_seconds: float = 60

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.first_seconds * 2 ** (failures - 1), self.longest_seconds)


@dataclass(eq=False)
class Supervisor:
    """Runs programs. Leaving the `async with` ends all of them, in reverse order; `together`: they start and end at the
    same time."""

    programs: Sequence[Program]
    write: Write
    _: KW_ONLY
    restarts: Restarts = Restarts()
    grace: float = 10
    together: bool = False
    _children: dict[str, Child] = field(default_factory=dict[str, Child], init=False)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=PROBE_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self.together:
                await asyncio.gather(*(child.end(self.grace) for child in self._children.values()))
            for child in reversed(self._children.values()):
                await child.end(self.grace)
        finally:
            self.kill()
            await self._session.close()

    @property
    def pids(self) -> dict[str, int]:
        """The process of each program that is running."""
        return {name: child.pid for name, child in self._children.items() if child.alive}

    def kill(self) -> None:
        """End everything at once."""
        for child in self._children.values():
            child.kill()

    async def start(self) -> None:
        """Start every program, each when the one before it is healthy; optional ones start beside the others.

        Raises:
            ProgramFailed: one ended or did not become healthy in time.
        """
        awaited_last: list[Child] = []
        for program in self.programs:
            child = self._children[program.name] = await Child.start(program, self.write)
            if program.optional or self.together:
                awaited_last.append(child)
            elif not await self._becomes_healthy(child):
                raise _failed(child, "did not start")
        for child in awaited_last:
            if await self._becomes_healthy(child):
                continue
            if not child.program.optional:
                raise _failed(child, "did not start")
            self.write(child.program.name, "did not start; the product runs without it")

    async def keep(self) -> None:
        """Restart what dies, until something has to be given up.

        Raises:
            ProgramFailed: a program kept dying, or ended because of a setting.
        """
        keepers = [asyncio.create_task(self._keep(child)) for child in self._children.values()]
        try:
            done, _ = await asyncio.wait(keepers, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)  # a program that one of them was starting is ended first

    async def _keep(self, child: Child) -> None:
        program, failures = child.program, 0
        while True:
            code = await asyncio.shield(child.exited)
            settled = time.monotonic() - child.started >= self.restarts.settled_seconds
            failures = 1 if settled else failures + 1
            if code == SETTING_WRONG or failures > self.restarts.attempts:
                if not program.optional:
                    raise _failed(child, "is not restarted")
                self.write(program.name, f"{ending(code)} and is not restarted; the product runs without it")
                await asyncio.get_running_loop().create_future()
            pause = self.restarts.pause(failures)
            self.write(program.name, f"{ending(code)}; restarting in {pause:g} s")
            await asyncio.sleep(pause)
            child = self._children[program.name] = await Child.start(program, self.write)
            if await self._becomes_healthy(child):
                self.write(program.name, "is running again")
            else:
                await child.end(self.grace)

    async def _becomes_healthy(self, child: Child) -> bool:
        program, deadline = child.program, time.monotonic() + child.program.start_seconds
        while child.alive and time.monotonic() < deadline:
            url = program.health_url
            if program.ready(child.pid) if program.ready else url is None or await answers(self._session, url):
                return True
            await asyncio.wait({child.exited}, timeout=POLL_SECONDS)
        return False


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether the address answers with 200 within the session's time."""
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def until_stopped(supervisor: Supervisor, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, which starts and keeps the programs, until a signal to stop comes.

    Raises:
        ProgramFailed: a program has to be given up.
    """
    stop, working = stop_signal(supervisor), asyncio.create_task(work)
    await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()
    working.cancel()


def stop_signal(supervisor: Supervisor) -> asyncio.Future[None]:
    """Done with the first signal to stop; the second one ends everything at once. One that `nohup` ignores stays so."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if received.done():
            supervisor.kill()  # the second Ctrl-C does not wait
        else:
            received.set_result(None)

    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
        loop.add_signal_handler(number, stop)
    return received


def _failed(child: Child, consequence: str) -> ProgramFailed:
    program = child.program
    if child.alive:
        return ProgramFailed(f"{program.name} was not ready within {program.start_seconds:g} s and {consequence}.")
    code = child.exited.result()
    message = f"{program.name} {ending(code)} and {consequence}; its output above says why."
    return ProgramFailed(message, SETTING_WRONG if code == SETTING_WRONG else FAILED)


def _end_with(parent: int) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before prctl took effect
            os._exit(1)

    return die_with_parent


async def _forward_lines(stream: asyncio.StreamReader | None, write: Callable[[str], None]) -> None:
    rest = b""
    while stream is not None and (data := await stream.read(65_536)):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        for line in lines:
            write(line.decode("utf-8", "replace").rstrip("\r"))
    if rest:
        write(rest.decode("utf-8", "replace"))
