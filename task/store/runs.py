"""Runs: one answer each, with its events for whoever listens, now or after a break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, cast

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from task.conversation.messages import Message
from task.errors import Conflict, NotFound, StoreUnavailable
from task.store import tables
from task.store.database import Database
from task.store.live import LiveRun
from task.store.paging import page_from, page_of
from task.store.processes import Processes
from task.store.records import Event, Page, Run, RunStatus, Session
from task.store.session_rows import add_answer, append
from task.store.wire import new_id, unpacked
from task.store.writer import Writer

POLL_SECONDS = 0.2
LISTENING_SECONDS = 1.0  # how often a run's process is told that somebody listens elsewhere
ENDING_SECONDS = 40.0  # longer than it takes until a dead process's run is marked
_runs, _events = tables.runs, tables.events
_NAMED = {column.name: bindparam(column.name, type_=column.type) for column in _events.c}
# A run that was removed with its session has no events any more.
_ADD_EVENTS = insert(_events).from_select(
    list(_NAMED), select(*_NAMED.values()).where(select(_runs.c.id).where(_runs.c.id == _NAMED["run_id"]).exists())
)


class Runs:
    """The runs of the store. Methods with an owner raise `NotFound` for a run that the owner does not have."""

    def __init__(self, database: Database, writer: Writer, processes: Processes, clock: Callable[[], float]) -> None:
        self._database, self._writer, self._processes, self._clock = database, writer, processes, clock
        self._live: dict[str, LiveRun] = {}

    async def begin(
        self,
        owner: str,
        *,
        session: Session | None = None,
        messages: Sequence[Message] = (),
        trace_id: str | None = None,
        experiment: str | None = None,
    ) -> Run:
        """Begin a run of this process; in a session, `messages` are added to it as it was at `session.version`.

        Raises:
            Conflict: another run answers in this session, the session was changed meanwhile, or it has ended.
            NotFound: the session is gone.
        """
        now, session_id = self._clock(), session.session_id if session else None
        run = Run(new_id("run", 16), owner, "running", now, session_id, trace_id, experiment)
        if session is not None:
            await self._free(session.session_id)

        def work(connection: Connection) -> None:
            if session is not None:
                _nobody_else(connection, session.session_id)
                append(connection, owner, session.session_id, messages, session.version, now)
            connection.execute(insert(_runs), self._row(run))

        try:
            await self._database.write(work)
        except (asyncio.CancelledError, StoreUnavailable):
            self._writer.put(partial(_give_up, run.run_id, now))  # it may be on disk all the same
            raise
        self._live[run.run_id] = LiveRun(run.run_id, self._queue)
        return run

    def append_event(self, run_id: str, kind: str, /, **data: Any) -> Event:
        """Add an event to a running run of this process. An event of the kind "text" has the text as `text`."""
        return self._live[run_id].append(kind, data)

    async def finish(
        self,
        run_id: str,
        status: RunStatus,
        *,
        added: Sequence[Message] = (),
        error: str | None = None,
        session_id: str | None = None,
    ) -> None:
        """End a run of this process: its events, status and messages are on disk when this returns.

        A run that others have taken for dead meanwhile stays interrupted. `session_id` is the session that a run
        without one was given, which has its messages already.

        Raises:
            StoreUnavailable: they are not; they will be as soon as that can be.
        """
        live, now = self._live.pop(run_id), self._clock()
        live.end()

        def work(connection: Connection) -> None:
            running = update(_runs).where(_runs.c.id == run_id, _runs.c.status == "running")
            given = {"session_id": session_id} if session_id is not None else {}
            ended = running.values(status=status, ended_at=now, error=error, **given).returning(_runs.c.session_id)
            row = connection.execute(ended).first()
            if row is not None and row.session_id is not None and added and not given:
                add_answer(connection, row.session_id, added, now)

        self._writer.put(work)
        await self._writer.flush()

    async def get(self, owner: str, run_id: str) -> Run:
        query = select(_runs).where(_runs.c.id == run_id, _runs.c.owner == owner)
        row = await self._database.read(lambda connection: connection.execute(query).first())
        if row is None:
            raise NotFound(f"there is no run {run_id!r}")
        return _run(row)

    async def list(
        self, owner: str, session_id: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[Run]:
        """The owner's runs, the newest first."""
        query = select(_runs).where(_runs.c.owner == owner)
        if session_id is not None:
            query = query.where(_runs.c.session_id == session_id)
        query = page_of(query, _runs.c.started_at, _runs.c.id, limit, cursor)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return page_from(rows, limit, _run, lambda run: (run.started_at, run.run_id))

    async def events_after(self, owner: str, run_id: str, after: int = 0) -> AsyncGenerator[Event]:
        """The run's events after that number, and then each as it comes until the run is over.

        It may be a run of another process; then its events come a fraction of a second later.
        """
        live = self._live.get(run_id)
        run, told_at = await self.get(owner, run_id), 0.0
        if live is not None:
            async for event in live.after(after):
                yield event
            return
        while True:
            if not run.over and monotonic() - told_at >= LISTENING_SECONDS:
                told_at = monotonic()
                await self._tell_listening(run_id)
            for event in await self._stored_after(run_id, after):
                after = event.number
                yield event
            if run.over:
                return
            await asyncio.sleep(POLL_SECONDS)
            run = await self.get(owner, run_id)

    async def ask_cancel(self, owner: str, run_id: str) -> Run:
        """Ask for the end of a run, whichever process it runs in; a run that is over stays as it is."""
        run = await self.get(owner, run_id)
        if run.over:
            return run
        asked = update(_runs).where(_runs.c.id == run_id).values(cancel_asked=True)
        await self._database.write(lambda connection: connection.execute(asked))
        if run_id in self._live:
            self._live[run_id].cancel_asked.set()
        return run

    async def cancel_asked(self, run_id: str) -> None:
        """Return when somebody asks for the end of this process's run, here or in another process."""
        await self._live[run_id].cancel_asked.wait()

    async def ended(self, owner: str, run_id: str, seconds: float = ENDING_SECONDS) -> Run:
        """The run when it is over, whichever process it runs in; as it is when that takes longer than `seconds`."""
        until = monotonic() + seconds
        while True:
            run = await self.get(owner, run_id)
            if run.over or monotonic() >= until:
                return run
            await asyncio.sleep(POLL_SECONDS)

    def unheard_seconds(self, run_id: str) -> float:
        """How long ago somebody last listened at another process to this process's run."""
        live = self._live.get(run_id)
        return self._clock() - (live.heard_at if live is not None else 0.0)

    async def hear_others(self) -> None:
        """Look once what other processes ask of runs of this one: their end, or to go on for a listener there.

        A run that was removed with its session ends too.
        """
        if not (lives := dict(self._live)):
            return
        query = select(_runs.c.id, _runs.c.cancel_asked, _runs.c.heard_at).where(_runs.c.id.in_(list(lives)))
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        found = {row.id: row for row in rows}
        for run_id, live in lives.items():
            row = found.get(run_id)
            live.heard_at = (row.heard_at if row is not None else None) or 0.0
            if row is None or row.cancel_asked:
                live.cancel_asked.set()

    async def _tell_listening(self, run_id: str) -> None:
        listening = update(_runs).where(_runs.c.id == run_id).values(heard_at=self._clock())
        with suppress(StoreUnavailable):  # to be heard is what the listener came for
            await self._database.write(lambda connection: connection.execute(listening))

    def _queue(self, row: dict[str, Any]) -> None:
        self._writer.put(lambda connection: connection.execute(_ADD_EVENTS, row))

    def _row(self, run: Run) -> dict[str, Any]:
        return {
            "id": run.run_id, "owner": run.owner, "session_id": run.session_id, "trace_id": run.trace_id,
            "experiment": run.experiment, "status": run.status, "process": self._processes.own_id,
            "started_at": run.started_at,
        }  # fmt: skip

    async def _free(self, session_id: str) -> None:
        query = select(_runs.c.process).where(_runs.c.session_id == session_id, _runs.c.status == "running")
        row = await self._database.read(lambda connection: connection.execute(query).first())
        if row is not None and row.process not in await self._processes.living():
            await self._processes.interrupt_orphans()

    async def _stored_after(self, run_id: str, after: int) -> Sequence[Event]:
        query = select(_events.c.data).where(_events.c.run_id == run_id, _events.c.last > after)
        query = query.order_by(_events.c.first)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        events = [_event(item) for row in rows for item in unpacked(row.data)]
        return [event for event in events if event.number > after]


def _give_up(run_id: str, now: float, connection: Connection) -> None:
    connection.execute(update(_runs).where(_runs.c.id == run_id).values(status="cancelled", ended_at=now))


def _nobody_else(connection: Connection, session_id: str) -> None:
    query = select(_runs.c.id).where(_runs.c.session_id == session_id, _runs.c.status == "running")
    if connection.execute(query).first() is not None:
        raise Conflict(f"the session {session_id} is being answered already; wait for that answer, or cancel its run")


def _run(row: Row[Any]) -> Run:
    return Run(
        row.id, row.owner, cast("RunStatus", row.status), row.started_at, row.session_id, row.trace_id,
        row.experiment, row.ended_at, row.cancel_asked, row.error,
    )  # fmt: skip


def _event(item: dict[str, Any]) -> Event:
    return Event(item.pop("id"), item.pop("type"), item)
