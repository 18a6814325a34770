"""One kernel per conversation: found, given out, called in turn, ended when its time is over, or handed on."""

import asyncio
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

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
MAX_IDS = 16
MOVED = "the interpreter server that kept them has stopped or could not be reached"
DRAINING = "This Python interpreter is about to stop and runs no more code. Nothing was run; call again."
UNKNOWN = "This Python interpreter does not have the conversation's session. Nothing was run; call again."
LOST_WHEN = {
    Ending.TIMED_OUT: "the code did not stop when it was interrupted at the time limit",
    Ending.FLOODED: "the code wrote more output than may be kept and did not stop when it was interrupted",
    Ending.DISK_FULL: "the code filled the working directory and did not stop when it was interrupted",
    Ending.STOPPED: "the call was cancelled and the code did not stop when it was interrupted",
    Ending.DIED: "the Python process ended (it was killed, ran out of memory, or crashed)",
}


class CallRefused(Exception):
    """A call that cannot be made now; the text is for the model."""


class NotHere(CallRefused):
    """A call that another server has to run; nothing was run here."""

    def __init__(self, reason: Literal["draining", "unknown"]) -> None:
        super().__init__(DRAINING if reason == "draining" else UNKNOWN)
        self.reason = reason


@dataclass(slots=True)
class KernelSession:
    """One conversation's kernel and files. `lost` is why earlier variables are gone, until a call has reported it.

    `ids` begins with the session's own id; those that it replaced follow, and `replaced` is why. `restored` are the
    versions of files that an earlier session of the conversation had made; `calls` is how many calls ran.
    """

    handle: str
    owner: str
    place: KernelFolders
    kernel: Kernel | None
    generation: int
    lost: str = ""
    ids: tuple[str, ...] = ()
    replaced: str = ""
    calls: int = 0
    inputs: dict[str, str] = field(default_factory=dict[str, str])
    restored: dict[str, str] = field(default_factory=dict[str, str])
    shown: int = 0
    waiting: int = 0
    born: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def folder(self, area: str) -> Path | None:
        """Where the files of an area are: `files` of its code, `shown` of its displays."""
        return {"files": self.place.work, "shown": self.place.shown}.get(area)


@dataclass(frozen=True, slots=True)
class Ran:
    """One call: what happened, in which kernel of its session, and the files before and after.

    `lost` is why variables of earlier calls, or of this one, are gone; `limit` is in seconds. `first`: no call ran in
    the session before.
    """

    executed: Executed
    session: KernelSession
    generation: int
    lost: str
    limit: float
    before: Snapshot
    after: Snapshot
    first: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """The session that a call needs; `kernel`, `fresh`, `inputs` and `made` are those of `CallMeta`."""

    handle: str
    kernel: str = ""
    fresh: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    made: Mapping[str, str] = field(default_factory=dict[str, str])


class Sessions:
    """All sessions of the server, which is called `server`, by handle. One owner has at most half of them."""

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
        self.server = secrets.token_hex(4)
        self.draining = False

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, handle: str) -> KernelSession | None:
        return self._sessions.get(handle)

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits."""
        return bool(self._tasks)

    def drain(self) -> None:
        """Refuse every call from here on, those that wait included; what runs goes on."""
        self.draining = True
        self._line.give_up()

    async def missing(self, wanted: Wanted, ticket: Ticket) -> tuple[list[str], list[str]]:
        """The inputs that the session does not have, and the files to restore in it; opens it if any are named.

        Raises:
            CallRefused: it cannot be opened.
        """
        if not wanted.inputs and not wanted.made:
            return [], []
        session = await self._open(wanted, ticket)
        made = {} if session.calls else wanted.made
        return _other(wanted.inputs, session.inputs), _other(made, session.restored)

    async def execute(self, wanted: Wanted, ticket: Ticket, code: str, seconds: float) -> Ran:
        """Run the code in the session's kernel, after the calls that came before it.

        `seconds` are for waiting in the line and running together. A cancelled call leaves the line or interrupts the
        code; the session stays taken until the code has stopped.

        Raises:
            CallRefused: the session has too many calls waiting, or no kernel can be had, or another server has to run
            it (`NotHere`).
        """
        stop = asyncio.Event()
        task = self._spawn(self._in_turn(wanted, ticket, code, seconds, stop))
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

    async def _in_turn(self, wanted: Wanted, ticket: Ticket, code: str, seconds: float, stop: asyncio.Event) -> Ran:
        while True:
            async with self._taken(wanted, ticket) as session, self._placed(ticket, seconds):
                if self._sessions.get(wanted.handle) is not session:
                    continue  # it was cleared while this call waited
                if session.kernel is None or not session.kernel.alive:
                    await self._revive(session)
                if wanted.kernel and wanted.kernel != session.ids[0]:
                    session.lost = session.lost or session.replaced
                left = max(0.0, seconds - ticket.waited)
                return await self._run(session, code, min(self._limits.seconds, left), stop)

    @asynccontextmanager
    async def _placed(self, ticket: Ticket, seconds: float = math.inf) -> AsyncGenerator[None]:
        if self.draining:
            raise NotHere("draining")
        try:
            async with self._line.place(ticket, min(seconds, self._limits.line_seconds)):
                yield
        except NoPlace as reason:
            if self.draining and not ticket.given_up:
                raise NotHere("draining") from None
            raise CallRefused(str(reason)) from None

    async def _run(self, session: KernelSession, code: str, seconds: float, stop: asyncio.Event) -> Ran:
        kernel, lost = session.kernel, session.lost
        assert kernel is not None
        generation, session.lost = session.generation, ""
        session.calls += 1
        first = session.calls == 1
        session.place.make()
        before = await self._look(session)
        executed = await execute(kernel, code, replace(self._limits, seconds=seconds), stop)
        after = await self._look(session)
        if executed.reply is None:
            lost = f"{lost}; then {LOST_WHEN[executed.ending]}" if lost else LOST_WHEN[executed.ending]
            session.kernel = None
            if executed.ending is Ending.STOPPED:
                session.lost = lost  # this call cannot report it
        return Ran(executed, session, generation, lost, seconds, before, after, first)

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
        self._memory.keep(session.handle, Remembered(session.generation, ids=session.ids))

    @asynccontextmanager
    async def _taken(self, wanted: Wanted, ticket: Ticket) -> AsyncGenerator[KernelSession]:
        session = await self._open(wanted, ticket)
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

    async def _open(self, wanted: Wanted, ticket: Ticket) -> KernelSession:
        if self.draining:
            raise NotHere("draining")
        handle = wanted.handle
        async with self._opening.setdefault(handle, asyncio.Lock()):
            session = self._sessions.get(handle)
            if wanted.kernel and wanted.kernel not in self._ids(handle):
                if not wanted.fresh:
                    raise NotHere("unknown")
                if session is not None:  # left over: the conversation went on elsewhere
                    await self._end(session, MOVED)
                    session = None
            if session is None:
                async with self._placed(ticket):
                    session = self._sessions[handle] = await self._fitted(wanted, ticket.owner)
            return session

    def _ids(self, handle: str) -> tuple[str, ...]:
        if session := self._sessions.get(handle):
            return session.ids
        remembered = self._memory.of(handle)
        return remembered.ids if remembered else ()

    async def _fitted(self, wanted: Wanted, owner: str) -> KernelSession:
        self._coming[owner] += 1
        try:
            await self._make_room(owner)
            return await self._made(wanted, owner)
        finally:
            self._coming[owner] -= 1

    async def _made(self, wanted: Wanted, owner: str) -> KernelSession:
        handle, remembered = wanted.handle, self._memory.of(wanted.handle)
        try:
            kernel = await self._pool.take()
        except KernelFailed as failure:
            logger.warning("session %s has no kernel: %s", handle[:8], failure)
            raise CallRefused("Python could not be started. Try again later, or tell the user.") from failure
        generation = remembered.generation + 1 if remembered else 1
        earlier, lost = (remembered.ids, remembered.lost) if remembered else ((), "")
        if wanted.kernel and wanted.kernel not in earlier:
            earlier, lost = (wanted.kernel, *earlier), MOVED
        ids = (f"{self.server}.{secrets.token_hex(6)}", *earlier)[:MAX_IDS]
        self._memory.keep(handle, Remembered(generation, ids=ids))
        return KernelSession(handle, owner, kernel.place, kernel, generation, lost, ids, lost)

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
            self._memory.keep(session.handle, Remembered(session.generation, reason, session.ids))
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


def _other(wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    return [name for name, version in wanted.items() if present.get(name) != version]
