"""One kernel per conversation: found, given out, called in turn, ended when its time is over."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_servers.python_interpreter.config import Config, Limits
from mcp_servers.python_interpreter.execution import Ending, Executed, execute
from mcp_servers.python_interpreter.files import Snapshot, snapshot
from mcp_servers.python_interpreter.kernels import Kernel, KernelFailed
from mcp_servers.python_interpreter.line import Line, NoPlace, Ticket
from mcp_servers.python_interpreter.memory import Memory, Remembered
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.python_interpreter.pool import Pool

logger = logging.getLogger(__name__)

REAP_SECONDS = 15.0
FEW_ENTRIES = 200
LOST_WHEN = {
    Ending.TIMED_OUT: "the code did not stop when it was interrupted at the time limit",
    Ending.FLOODED: "the code wrote more output than may be kept and did not stop when it was interrupted",
    Ending.DISK_FULL: "the code filled the working directory and did not stop when it was interrupted",
    Ending.STOPPED: "the call was cancelled and the code did not stop when it was interrupted",
    Ending.DIED: "the Python process ended (it was killed, ran out of memory, or crashed)",
}


class CallRefused(Exception):
    """A call that cannot be made now; the text is for the model."""


@dataclass(slots=True)
class KernelSession:
    """One conversation's kernel and files. `lost` is why earlier variables are gone, until a call has reported it."""

    handle: str
    owner: str
    place: KernelFolders
    kernel: Kernel | None
    generation: int
    lost: str = ""
    inputs: dict[str, str] = field(default_factory=dict[str, str])
    shown: int = 0
    waiting: int = 0
    born: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Ran:
    """One call: what happened, in which kernel of its session, and the files before and after.

    `lost` is why variables of earlier calls, or of this one, are gone; `limit` is in seconds.
    """

    executed: Executed
    session: KernelSession
    generation: int
    lost: str
    limit: float
    before: Snapshot
    after: Snapshot


class Sessions:
    """All sessions of the server by handle. One owner has at most half of them."""

    def __init__(self, config: Config, pool: Pool, memory: Memory) -> None:
        self._limits: Limits = config.limits
        self._pool = pool
        self._memory = memory
        self._sessions: dict[str, KernelSession] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._coming = Counter[str]()
        self._share = max(1, config.limits.sessions // 2)
        self._line = Line(config.limits.running)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, handle: str) -> KernelSession | None:
        return self._sessions.get(handle)

    async def missing(self, handle: str, ticket: Ticket, inputs: Mapping[str, str]) -> list[str]:
        """The inputs, given with their versions, that the session does not have; opens it if there are inputs."""
        if not inputs:
            return []
        session = await self._open(handle, ticket)
        return [name for name, version in inputs.items() if session.inputs.get(name) != version]

    async def execute(self, handle: str, ticket: Ticket, code: str, seconds: float) -> Ran:
        """Run the code in the session's kernel, after the calls that came before it.

        `seconds` are for waiting in the line and running together. A cancelled call leaves the line or interrupts the
        code; the session stays taken until the code has stopped.

        Raises:
            CallRefused: the session has too many calls waiting, or no kernel can be had.
        """
        stop = asyncio.Event()
        task = self._spawn(self._in_turn(handle, ticket, code, seconds, stop))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            stop.set()
            ticket.give_up()
            raise

    async def clear(self, handle: str) -> bool:
        """End the session with its files; whether there was one."""
        session = self._sessions.get(handle)
        self._memory.forget(handle)
        if session is None:
            return False
        async with session.turn:
            await self._end(session, "")
        return True

    async def reap(self) -> None:
        """End what is idle or too old; runs until cancelled."""
        while True:
            await asyncio.sleep(min(REAP_SECONDS, self._limits.idle_seconds / 2))
            now = time.monotonic()
            for session in list(self._sessions.values()):
                if session.waiting:
                    continue
                if now - session.used > self._limits.idle_seconds:
                    await self._end(session, "the session was not used for a long time and has ended")
                elif now - session.born > self._limits.lifetime_seconds:
                    await self._end(session, "the session reached its greatest age and has ended")
            self._opening = {
                handle: lock for handle, lock in self._opening.items() if handle in self._sessions or lock.locked()
            }  # fmt: skip
            await asyncio.to_thread(self._memory.forget_old)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ended, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(self._pool.remove(session.place, session.kernel) for session in ended))

    async def _in_turn(self, handle: str, ticket: Ticket, code: str, seconds: float, stop: asyncio.Event) -> Ran:
        while True:
            async with self._taken(handle, ticket) as session, self._placed(ticket, seconds):
                if self._sessions.get(handle) is not session:
                    continue  # it was cleared while this call waited
                if session.kernel is None or not session.kernel.alive:
                    await self._revive(session)
                left = max(0.0, seconds - ticket.waited)
                return await self._run(session, code, min(self._limits.seconds, left), stop)

    @asynccontextmanager
    async def _placed(self, ticket: Ticket, seconds: float = math.inf) -> AsyncGenerator[None]:
        try:
            async with self._line.place(ticket, min(seconds, self._limits.line_seconds)):
                yield
        except NoPlace as reason:
            raise CallRefused(str(reason)) from None

    async def _run(self, session: KernelSession, code: str, seconds: float, stop: asyncio.Event) -> Ran:
        kernel, lost = session.kernel, session.lost
        assert kernel is not None
        generation, session.lost = session.generation, ""
        session.place.make()
        before = await self._look(session)
        executed = await execute(kernel, code, replace(self._limits, seconds=seconds), stop)
        after = await self._look(session)
        if executed.reply is None:
            lost = f"{lost}; then {LOST_WHEN[executed.ending]}" if lost else LOST_WHEN[executed.ending]
            session.kernel = None
            if executed.ending is Ending.STOPPED:
                session.lost = lost  # this call cannot report it
        return Ran(executed, session, generation, lost, seconds, before, after)

    async def _look(self, session: KernelSession) -> Snapshot:
        found = snapshot(session.place.work, FEW_ENTRIES)  # takes less time than asking a thread to do it
        if found.complete:
            return found
        return await asyncio.to_thread(snapshot, session.place.work, self._limits.work_entries)

    async def _revive(self, session: KernelSession) -> None:
        if session.kernel is not None:
            await session.kernel.kill()
            session.lost = session.lost or "the Python process ended between two calls"
            session.kernel = None
        try:
            session.kernel = await self._pool.restart(session.place)
        except KernelFailed as failure:
            logger.warning("session %s has no kernel: %s", session.handle[:8], failure)
            raise CallRefused("Python could not be started. Try again later, or tell the user.") from failure
        session.generation += 1
        self._memory.keep(session.handle, Remembered(session.generation))

    @asynccontextmanager
    async def _taken(self, handle: str, ticket: Ticket) -> AsyncGenerator[KernelSession]:
        session = await self._open(handle, ticket)
        if session.waiting > self._limits.waiting_calls:
            raise CallRefused("too many calls of this conversation are waiting already; wait for their results")
        session.waiting += 1
        try:
            async with session.turn:
                yield session
        finally:
            session.waiting -= 1
            session.used = time.monotonic()
            self._pool.fill_later()

    async def _open(self, handle: str, ticket: Ticket) -> KernelSession:
        async with self._opening.setdefault(handle, asyncio.Lock()):
            session = self._sessions.get(handle)
            if session is None:
                async with self._placed(ticket):
                    session = self._sessions[handle] = await self._fitted(handle, ticket.owner)
            return session

    async def _fitted(self, handle: str, owner: str) -> KernelSession:
        self._coming[owner] += 1
        try:
            await self._make_room(owner)
            return await self._made(handle, owner)
        finally:
            self._coming[owner] -= 1

    async def _made(self, handle: str, owner: str) -> KernelSession:
        remembered = self._memory.of(handle)
        try:
            kernel = await self._pool.take()
        except KernelFailed as failure:
            logger.warning("session %s has no kernel: %s", handle[:8], failure)
            raise CallRefused("Python could not be started. Try again later, or tell the user.") from failure
        generation = remembered.generation + 1 if remembered else 1
        self._memory.keep(handle, Remembered(generation))
        return KernelSession(handle, owner, kernel.place, kernel, generation, remembered.lost if remembered else "")

    async def _make_room(self, owner: str) -> None:
        while self._held()[owner] > self._share:
            await self._end_idle([session for session in self._sessions.values() if session.owner == owner])
        while self._held().total() > self._limits.sessions:
            await self._end_idle(self._sessions.values())

    def _held(self) -> Counter[str]:
        """How many sessions each owner has, those that are being opened included."""
        return Counter(session.owner for session in self._sessions.values()) + self._coming

    async def _end_idle(self, sessions: Iterable[KernelSession]) -> None:
        """End a session that nothing runs in: of the owner with most of them, the one unused for the longest time."""
        held = self._held()
        idle = [session for session in sessions if not session.waiting]
        if not idle:
            raise CallRefused("every Python session is busy; try again in a minute")
        oldest = min(idle, key=lambda session: (-held[session.owner], session.used))
        await self._end(oldest, "the session was ended to make room for others")

    async def _end(self, session: KernelSession, reason: str) -> None:
        if self._sessions.get(session.handle) is not session:
            return
        del self._sessions[session.handle]
        if reason:
            self._memory.keep(session.handle, Remembered(session.generation, reason))
        await self._pool.remove(session.place, session.kernel)

    def _spawn(self, work: Coroutine[Any, Any, Ran]) -> asyncio.Task[Ran]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._retrieved)
        return task

    def _retrieved(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
