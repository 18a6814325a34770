"""Which processes share the store, their common clock, and what becomes of what a dead one left unfinished."""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, exists, extract, func, insert, or_, select, text, update

from task.conversation.inner import outer_id
from task.conversation.messages import NOT_APPROVED, PERHAPS_RUN, assistant, tool_message, unanswered
from task.store import tables
from task.store.database import Database, insert_new
from task.store.records import FINISHED, new_id, packed, unpacked
from task.store.search import reindex
from task.store.sessions import add_messages, messages_of

ENDED = ("Z", "X")  # killed, and not yet awaited by its parent
BEAT_SECONDS = 5.0
LEASE_SECONDS = 30.0
MOST_BETWEEN_BEATS = 3 * BEAT_SECONDS  # of a process that judges others; more than that was an outage
TEXT = "text"
logger = logging.getLogger(__name__)

INTERRUPTED = "interrupted"
ERROR = "the process stopped during the answer"
OTHER_SEAL = (
    "another agent of this store has another AGENT_STATE_SECRET: conversations lose the results of earlier tools "
    "whenever they change between the two. Set the same for all."
)
WRONG_CLOCK = (
    "this machine's clock is {:.0f} s {} the store's: times in its log are wrong. Let NTP set the clocks of both."
)
_processes, _approvals = tables.processes, tables.approvals
CLOCK_SECONDS = 5.0  # by which the clocks of two machines may differ before an operator should correct them
_NOW = select(extract("epoch", func.clock_timestamp()))


@dataclass(slots=True)
class Processes:
    """This process among those that share the store, and their common time: that of the database's server, however much
    their own clocks differ (`own_clock`). Those that share an SQLite file share a machine and thus a clock.

    A process that has not been seen for 30 s is dead. Only a process that could reach the database all that time may
    say so: after an outage no process has been seen. `secret` is the fingerprint of the secret with which this process
    seals hidden state, None where it seals none.
    """

    database: Database
    own_clock: Callable[[], float]
    secret: str | None = None
    own_id: str = field(default_factory=lambda: new_id("proc", 16))
    ahead: float = 0.0  # seconds by which the database's clock was ahead of this machine's when it was last read
    _beaten_at: float = -inf
    _steady_since: float = inf

    def clock(self) -> float:
        return self.own_clock() + self.ahead

    async def set_clock(self) -> None:
        if not self.database.is_sqlite:
            [row] = await self.database.reserved.rows(_NOW)
            self.ahead = float(row[0]) - self.own_clock()

    async def beat(self) -> None:
        """Set the clock, and take part, or renew this process's lease."""
        await self.set_clock()
        now = self.clock()
        seen = update(_processes).where(_processes.c.id == self.own_id).values(seen_at=now)
        about = {"tables_version": tables.HEAD, "secret": self.secret}
        row = {"id": self.own_id, "place": _place(os.getpid()), "seen_at": now, **about}

        def work(connection: Connection) -> None:
            # It is new, or was held up for so long that others removed it as dead.
            if not connection.execute(seen).rowcount:
                connection.execute(insert(_processes), row)

        await self.database.reserved.write(work)
        now = self.clock()
        if not 0 <= now - self._beaten_at <= MOST_BETWEEN_BEATS:
            self._steady_since = now
        self._beaten_at = now

    async def leave(self) -> None:
        await self.database.reserved.execute(delete(_processes).where(_processes.c.id == self.own_id))

    async def first_to(self, chore: str, seconds: float) -> bool:
        """Whether no process that shares the store has done the chore within so many seconds; then it is this one's."""
        now, chores, name = self.clock(), tables.counters, f"chore:{chore}"
        # Half: each process has a timer of its own, and one that comes a little early must not skip its turn.
        done = {"name": name, "ready_at": now + seconds / 2}
        due = update(chores).where(chores.c.name == name, chores.c.ready_at <= now).values(done)

        def work(connection: Connection) -> bool:
            return insert_new(connection, chores, done) or bool(connection.execute(due).rowcount)

        return await self.database.write(work)

    async def disagreements(self) -> tuple[str, ...]:
        """What this process does not have in common with the others of the store, in sentences for operators."""
        found = list[str]()
        columns = _processes.c
        if self.secret is not None:
            other = select(columns.id).where(columns.secret.is_not(None), columns.secret != self.secret)
            if {row.id for row in await self.database.rows(other)} - (await self._last_seen()).keys():
                found.append(OTHER_SEAL)
        if abs(self.ahead) > CLOCK_SECONDS:
            direction = "behind" if self.ahead > 0 else "ahead of"
            found.append(WRONG_CLOCK.format(abs(self.ahead), direction))
        return tuple(found)

    async def interrupt_orphans(self) -> int:
        """Mark what dead processes left running as interrupted; how many runs there were."""
        dead, now = await self._last_seen(), self.clock()
        runs, traces = tables.runs, tables.traces
        of_runs, of_traces = (
            and_(
                table.c.status == "running",
                table.c.process != self.own_id,
                table.c.process.not_in(select(_processes.c.id)),
            )
            for table in (runs, traces)
        )
        left_behind = select(or_(exists().where(of_runs), exists().where(of_traces)))
        if not dead and not await self.database.read(lambda connection: connection.scalar(left_behind)):
            return 0

        def work(connection: Connection) -> list[str]:
            # In the same transaction: a process that beats at this moment either stays, or finds that it was removed.
            # One that was seen again since it was judged stays.
            columns = _processes.c
            gone = or_(*(and_(columns.id == name, columns.seen_at == seen_at) for name, seen_at in dead.items()))
            removed = delete(_processes).where(gone).returning(columns.id, columns.seen_at)
            for process, seen_at in connection.execute(removed).all() if dead else ():
                # What was changed after the process was last seen alive is not a task's, and its undo leaves it alone.
                mine = (runs.c.process == process, runs.c.status == "running")
                connection.execute(update(runs).where(*mine).values(ended_at=seen_at))
            ended = {"status": INTERRUPTED, "error": ERROR}
            last_alive = func.coalesce(runs.c.ended_at, now)
            rows = connection.execute(
                update(runs).where(of_runs).values(**ended, ended_at=last_alive).returning(*runs.c)
            ).all()
            for row in rows:
                _close(connection, row, now)
            connection.execute(update(traces).where(of_traces).values(**ended, completed_at=now))
            return [row.id for row in rows]

        found = await self.database.write(work)
        for run_id in found:
            logger.warning("the run %s was broken off: its process has ended", run_id)
        return len(found)

    async def _last_seen(self) -> dict[str, float]:
        await self.set_clock()  # this machine's own clock may have been put forward since
        rows, now = await self.database.rows(select(_processes)), self.clock()
        steady = now - self._beaten_at <= MOST_BETWEEN_BEATS and now - self._steady_since >= LEASE_SECONDS
        return {
            row.id: row.seen_at
            for row in rows
            if row.id != self.own_id and (_known_dead(row.place) or (steady and row.seen_at < now - LEASE_SECONDS))
        }


def alive(connection: Connection) -> list[Row[Any]]:
    """The processes that use the store, whatever columns a later version has added to their table."""
    now = time.time() if connection.dialect.name == "sqlite" else float(connection.execute(_NOW).scalar_one())
    rows = connection.execute(text("SELECT place, seen_at, tables_version FROM processes")).all()
    return [row for row in rows if row.seen_at >= now - LEASE_SECONDS and not _known_dead(row.place)]


def _place(pid: int) -> str:
    # Ticks between the machine's start and the process's: they reveal a process id that was assigned again.
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = "gone" if state in ENDED else rest[18]
    except OSError:
        ticks = "gone" if Path("/proc/self/stat").exists() else "unknown"
    return f"{socket.gethostname()} {pid} {ticks}"


def _known_dead(place: str) -> bool:
    host, pid, _ = place.rsplit(" ", 2)
    return host == socket.gethostname() and place != _place(int(pid))


def _close(connection: Connection, run: Row[Any], now: float) -> None:
    # Readers of the run find what its own process would have left: its last event and messages.
    stored = select(tables.events.c.data).where(tables.events.c.run_id == run.id).order_by(tables.events.c.first)
    events = [event for row in connection.execute(stored) for event in unpacked(row.data)]
    text = "".join(event["text"] for event in events if event["type"] == TEXT)
    # Listeners wait for this event, and the dead process did not write it.
    number = events[-1]["id"] + 1 if events else 1
    event = {"id": number, "type": FINISHED, "status": INTERRUPTED, "limit": None, "finish_reason": None}
    last = packed([{**event, "run_id": run.id, "session_id": run.session_id, "trace_id": run.trace_id}])
    connection.execute(insert(tables.events), {"run_id": run.id, "first": number, "last": number, "data": last})
    if run.session_id is not None and text:
        calls = unanswered(messages_of(connection, run.session_id)) if run.resumes is not None else ()
        # Of the calls that the run continued with, as of its own, the results died with the process.
        asked = select(_approvals.c.status, _approvals.c.data).where(_approvals.c.run_id == run.resumes)
        decided = connection.execute(asked).all() if calls else ()
        allowed = {outer_id(unpacked(row.data)["call_id"]) for row in decided if row.status == "allowed"}
        texts = {call.id: PERHAPS_RUN if call.id in allowed else NOT_APPROVED for call in calls}
        lost = [tool_message(call, texts[call.id], failed=True) for call in calls]
        add_messages(connection, run.session_id, [*lost, replace(assistant(text), unsourced=True)], now)
    if run.session_id is not None:
        reindex(connection, run.session_id)
    waiting = update(_approvals).where(_approvals.c.run_id == run.id, _approvals.c.status == "waiting")
    connection.execute(waiting.values(status="expired"))
