"""Runs: one answer each, with its events for clients that listen, now or after a break."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Row, select, update

from task.conversation.messages import Message, message_from
from task.errors import Conflict, NotFound, StoreUnavailable
from task.store import tables
from task.store.access import patiently
from task.store.database import Database, from_row, to_row
from task.store.keys import claimed, run_of
from task.store.processes import INTERRUPTED, LEASE_SECONDS, Processes
from task.store.records import (
    ENDING_SECONDS,
    FINISHED,
    Event,
    Page,
    RequestKey,
    Run,
    RunKind,
    RunStatus,
    Session,
    new_id,
    packed,
    unpacked,
)
from task.store.search import add_words
from task.store.sessions import add_messages
from task.store.starting import begin, claim, undo
from task.store.writer import EventLog, Writer, stored_events

POLL_SECONDS = 0.2
LISTENING_SECONDS = 1.0  # how often a listener in another process reports itself to the run's process
_runs = tables.runs


class Runs:
    """The runs of the store. Methods with an owner raise `NotFound` for a run that the owner does not have."""

    def __init__(self, database: Database, writer: Writer, processes: Processes, clock: Callable[[], float]) -> None:
        self._database, self._writer, self._processes, self._clock = database, writer, processes, clock
        self._live: dict[str, EventLog] = {}
        self._leased_until = monotonic() + LEASE_SECONDS

    async def start(
        self,
        owner: str,
        *,
        session: Session | None = None,
        messages: Sequence[Message] = (),
        trace_id: str | None = None,
        experiment: str | None = None,
        resumes: str | None = None,
        key: RequestKey | None = None,
        most: int | None = None,
        folder: str | None = None,
    ) -> Run:
        """Start a run of this process: an answer, or a coding task in `folder`. A session gets `messages` if it is
        still at `session.version`. `resumes` is the run that it continues, which happens once; `key` names the request,
        once for each owner. The owner may have `most` of a kind in progress, this one included.

        Raises:
            AlreadyStarted: the request has started a run, or the other run is continued already.
            KeyReused: the key came with another request before.
            Conflict: another run answers in this session, the session was changed since, or it has ended.
            NotFound: the session is gone.
            TooManyRuns: the owner has as many in progress.
            StoreUnavailable: the run cannot be stored now.
        """
        self._writer.admit()
        now, session_id = self._clock(), session.session_id if session else None
        run = Run(new_id("run", 16), owner, "running", now, session_id, trace_id, experiment, resumes=resumes)
        if folder is not None:
            run = replace(run, run_id=new_id("code"), kind="coding", folder=folder)  # users type the ids of tasks
        await self._keep_lease()  # others would end at once what a process starts that they have removed
        row = to_row(_runs, run, id=run.run_id, process=self._processes.own_id, added=None)

        def work(connection: Connection) -> None:
            claim(connection, run, key)
            begin(connection, run, row, session, messages, most)

        try:
            try:
                await self._database.write(work)
            except Conflict:
                # The run that answers may have died with its process; then this one need not be refused.
                if not await self._processes.interrupt_orphans():
                    raise
                await self._database.write(work)
        except (asyncio.CancelledError, StoreUnavailable):
            self._writer.put(partial(undo, run.run_id, session, self._clock))  # it may be on disk all the same
            raise
        self._live[run.run_id] = EventLog(run, self._writer, asked=messages)
        return run

    async def resume(self, run: Run) -> Run:
        """Let this process continue a run that has ended: its events go on where they stopped.

        Raises:
            Conflict: it has not ended.
        """
        self._writer.admit()
        await self._keep_lease()
        ended = update(_runs).where(_runs.c.id == run.run_id, _runs.c.status != "running")
        again: dict[str, Any] = {"status": "running", "ended_at": None, "error": None}
        if not await self._database.execute(ended.values(**again, process=self._processes.own_id, cancel_asked=False)):
            raise Conflict(f"the run {run.run_id} is in progress; wait for it, or stop it first")
        self._live[run.run_id] = EventLog(run, self._writer, await self.recorded(run.run_id))
        return replace(run, **again)

    def append_event(self, run_id: str, kind: str, /, **data: Any) -> Event:
        """Add an event to a running run of this process. An event of the kind "text" has the text as `text`."""
        return self._live[run_id].append(kind, data)

    async def finish(
        self,
        run: Run,
        status: RunStatus,
        *,
        added: Sequence[Message] = (),
        error: str | None = None,
        session_id: str | None = None,
    ) -> None:
        """End a run of this process: its events, status and messages are on disk when this returns.

        A run that other processes have marked as interrupted stays so. `session_id` is the session that a run without
        one was given, which has its messages already. Of a suspended run without a session they are kept with the run.

        Raises:
            StoreUnavailable: they are not on disk yet; the writer retries.
        """
        run_id, live, now = run.run_id, self._live.pop(run.run_id), self._clock()
        in_session = session_id or run.session_id
        suspended = status == "suspended"
        store_last_events = live.end()

        def work(connection: Connection) -> None:
            store_last_events(connection)
            running = update(_runs).where(_runs.c.id == run_id, _runs.c.status == "running")
            kept = packed([message.as_stored() for message in added]) if in_session is None and suspended else None
            ended = running.values(status=status, ended_at=now, error=error, session_id=in_session, added=kept)
            if connection.execute(ended).rowcount and run.session_id is not None:
                if added:
                    add_messages(connection, run.session_id, added, now)
                add_words(connection, run.session_id, [*live.asked, *added])

        # Queued behind the run's own events and traces, so that its end is never read before them.
        self._writer.put(work)
        await self._writer.flush()

    async def save(self, run_id: str) -> None:
        """Return when the events so far of a run of this process are on disk, and the run is its own; see `hold`."""
        self._live[run_id].save()
        await self._writer.flush()
        await self.hold(run_id)

    async def traced(self, run_id: str, trace_id: str) -> None:
        """Keep the id of the trace of what the run does now."""
        await self._database.execute(update(_runs).where(_runs.c.id == run_id).values(trace_id=trace_id))

    async def get(self, owner: str, run_id: str) -> Run:
        row = await self._database.first(select(_runs).where(_runs.c.id == run_id, _runs.c.owner == owner))
        if row is None:
            raise NotFound(f"there is no run {run_id!r}")
        return _run(row)

    async def added(self, owner: str, run_ids: Sequence[str]) -> dict[str, tuple[Message, ...]]:
        """The messages that are kept with these runs, as far as the owner has them."""
        query = select(_runs).where(_runs.c.id.in_(run_ids), _runs.c.owner == owner)
        return {row.id: _run(row).added for row in await self._database.rows(query)}

    async def resumed_by(self, owner: str, run_id: str) -> Run | None:
        """The run that continues this one."""
        row = await self._database.first(select(_runs).where(_runs.c.resumes == run_id, _runs.c.owner == owner))
        return _run(row) if row is not None else None

    async def started_by(self, owner: str, key: RequestKey) -> Run | None:
        """The run that a request of this name has started.

        Raises:
            KeyReused: it was another request.
        """
        run_id = await self._database.read(lambda connection: run_of(connection, owner, key, self._clock()))
        return await self.get(owner, run_id) if run_id is not None else None

    async def claim(self, owner: str, key: RequestKey, run_id: str) -> str:
        """Let the key stand for a run that was started before, unless it does for one: the run that it stands for.

        Raises:
            KeyReused: it came with another request before.
        """
        return await self._database.write(lambda connection: claimed(connection, owner, key, run_id, self._clock()))

    async def list(
        self,
        owner: str,
        session_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        *,
        kind: RunKind = "answer",
        folder: str | None = None,
    ) -> Page[Run]:
        """The owner's runs of one kind, the newest first; those of a session or a folder where it is given."""
        wanted = {_runs.c.owner: owner, _runs.c.kind: kind, _runs.c.session_id: session_id, _runs.c.folder: folder}
        query = select(_runs).where(*(column == value for column, value in wanted.items() if value is not None))
        return await self._database.page(query, _runs.c.started_at, limit, cursor, _run)

    async def events_after(self, owner: str, run_id: str, after: int = 0) -> AsyncGenerator[Event]:
        """The run's events after that number, and then each as it comes until the run is over.

        It may be a run of another process; then its events come a fraction of a second later.
        """
        live = self._live.get(run_id)
        if live is not None and live.run.owner == owner:
            async for event in live.after(after):
                yield event
            return
        run, reported_at, ended = await self.get(owner, run_id), 0.0, False
        while True:
            if not run.over and monotonic() - reported_at >= LISTENING_SECONDS:
                reported_at = monotonic()
                listening = update(_runs).where(_runs.c.id == run_id).values(heard_at=self._clock())
                with suppress(StoreUnavailable):  # the listener can still read
                    await self._database.execute(listening)
            for event in await stored_events(self._database, run_id, after):
                after, ended = event.number, event.type == FINISHED
                yield event
            if run.over:
                break
            await asyncio.sleep(POLL_SECONDS)
            run = await self.get(owner, run_id)
        if run.status == INTERRUPTED and not ended:
            # The client may have been sent more than the process could store before it died; it waits for the end.
            for event in (await stored_events(self._database, run_id, 0))[-1:]:
                yield event

    async def recorded(self, run_id: str) -> Sequence[Event]:
        """The run's events that are on disk, oldest first."""
        return await stored_events(self._database, run_id, 0)

    async def renew(self) -> None:
        """Renew the lease under which this process works on its runs; those that another process has ended are stopped.

        Raises:
            StoreUnavailable: the lease cannot be renewed now.
        """
        asked_at = monotonic()
        await self._processes.beat()
        await self.poll_requests()
        self._leased_until = asked_at + LEASE_SECONDS

    async def hold(self, run_id: str) -> None:
        """Return while the run is this process's to continue: to be called before anything that cannot be undone.

        A process that was frozen or cut off may have been taken for dead, and its run ended by another.

        Raises:
            Conflict: another process has ended the run.
            StoreUnavailable: that could not be found out within 30 s.
        """
        await patiently(self._keep_lease)
        if run_id not in self._live or self._live[run_id].ended_elsewhere:
            raise Conflict("The answer was interrupted: its agent was away for too long. Ask again.")

    async def request_cancel(self, owner: str, run_id: str) -> Run:
        """Ask for the end of a run, whichever process it runs in; a run that is over does not change."""
        run = await self.get(owner, run_id)
        if not run.over:
            await self._database.execute(update(_runs).where(_runs.c.id == run_id).values(cancel_asked=True))
            if run_id in self._live:
                self._live[run_id].cancel_requested.set()
        return run

    async def cancel_requested(self, run_id: str) -> None:
        """Return when the end of this process's run is asked for, here or in another process."""
        await self._live[run_id].cancel_requested.wait()

    async def ended(self, owner: str, run_id: str, seconds: float = ENDING_SECONDS) -> Run:
        """The run when it is over, whichever process it runs in; after `seconds` unfinished."""
        until = monotonic() + seconds
        # It may be another process's, which sets no event here.
        while not (run := await self.get(owner, run_id)).over and monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        return run

    def seconds_since_listener(self, run_id: str) -> float:
        """How long ago a client of another process last listened to this process's run."""
        live = self._live.get(run_id)
        return self._clock() - (live.listened_at if live is not None else 0.0)

    async def poll_requests(self) -> None:
        """Look once for what clients of other processes want of this one's runs: cancel them, or listen to them.

        A run that was removed with its session, or ended by another process, is cancelled too.
        """
        if not (lives := dict(self._live)):
            return
        columns = (_runs.c.id, _runs.c.status, _runs.c.cancel_asked, _runs.c.heard_at)
        query = select(*columns).where(_runs.c.id.in_(list(lives)))
        found = {row.id: row for row in await self._database.reserved.rows(query)}
        for run_id, live in lives.items():
            row = found.get(run_id)
            live.listened_at = (row.heard_at if row is not None else None) or 0.0
            live.ended_elsewhere = row is None or row.status != "running"
            if live.ended_elsewhere or (row is not None and row.cancel_asked):
                live.cancel_requested.set()

    async def _keep_lease(self) -> None:
        if monotonic() >= self._leased_until:
            await self.renew()


def _run(row: Row[Any]) -> Run:
    added = tuple(map(message_from, unpacked(row.added))) if row.added else ()
    return from_row(Run, row, run_id=row.id, added=added)
