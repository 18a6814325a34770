"""Writes off the path of an answer, gathered into transactions, and the events of runs on their way there."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select

from task.conversation.messages import Message
from task.errors import StoreUnavailable, new_reference
from task.store import tables
from task.store.database import Database
from task.store.records import Event, Run, packed, unpacked

logger = logging.getLogger(__name__)

Work = Callable[[Connection], object]

SAVE_SECONDS = 0.1
AT_ONCE = 200
GATHER_SECONDS = 0.25  # unless flushed, writes wait for each other: a transaction costs more than what it writes
MOST_QUEUED = 20_000  # above it nothing new begins, and what is under way queues only its end
RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
FLUSH_SECONDS = 30.0
CLOSED = "The store is closed. Try again in a moment."

_runs, _events = tables.runs, tables.events
_NAMED = {column.name: bindparam(column.name, type_=column.type) for column in _events.c}
# A run that was removed with its session, or ended by another process, gets no more events.
_RUNNING = select(_runs.c.id).where(_runs.c.id == _NAMED["run_id"], _runs.c.status == "running")
_ADD_EVENTS = insert(_events).from_select(list(_NAMED), select(*_NAMED.values()).where(_RUNNING.exists()))


class Writer:
    """Does queued writes in their order. While the database cannot be used they stay queued and are retried.

    None is dropped: work that can wait, and work that starts something new, checks first that there is room.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: deque[Work] = deque()
        self._given = self._done = 0
        self._more, self._hurry = asyncio.Event(), asyncio.Event()
        self._attempt: asyncio.Future[StoreUnavailable | None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._attempted(StoreUnavailable(CLOSED)))

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        return self.waiting < MOST_QUEUED

    def admit(self) -> None:
        """Called before something new begins.

        Raises:
            StoreUnavailable: too much waits to be written.
        """
        if not self.has_room:
            raise StoreUnavailable(
                "The store is overloaded: too many changes wait to be written. Try again in a moment."
            )

    def put(self, work: Work) -> None:
        """Queue `work`; it may be called twice when its transaction was lost."""
        if self._task.done():
            logger.error("a write of the store was lost: it came after the store was closed")
            return
        self._queue.append(work)
        self._given += 1
        self._more.set()

    async def flush(self) -> None:
        """Return when all that was put before is on disk.

        Raises:
            StoreUnavailable: it cannot be written now; the writer retries.
        """
        given = self._given
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                while self._done < given:
                    if self._task.done():
                        raise StoreUnavailable(CLOSED)
                    self._hurry.set()
                    if (failure := await asyncio.shield(self._attempt)) is not None:
                        raise failure
        except TimeoutError:
            raise StoreUnavailable("The store did not write in time. Try again in a moment.") from None

    async def close(self) -> None:
        """Write what is queued, if that can be done now, and stop."""
        try:
            await self.flush()
        except StoreUnavailable as error:
            logger.error("%d writes of the store were lost: %s", len(self._queue), error)  # noqa: TRY400
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._more.wait()
            with suppress(TimeoutError):
                # In Python 3.11 `wait_for` loses a cancellation that comes with its result, and this would run on.
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._hurry.wait()
            self._more.clear()
            self._hurry.clear()
            while self._queue:
                try:
                    await self._write(list(islice(self._queue, AT_ONCE)))
                    self._attempted(None)
                    failures = 0
                except StoreUnavailable as error:
                    self._attempted(error)
                    await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                    failures += 1

    async def _write(self, works: Sequence[Work]) -> None:
        def write_all(connection: Connection) -> None:
            for work in works:
                work(connection)

        try:
            await self._database.write(write_all)
        except StoreUnavailable:
            raise
        except Exception:
            if len(works) == 1:
                logger.exception("a write of the store failed (reference %s)", new_reference())
            else:  # one of them is at fault: the others are written alone
                for work in works:
                    await self._write([work])
                return
        for _ in works:
            self._queue.popleft()
        self._done += len(works)

    def _attempted(self, failure: StoreUnavailable | None) -> None:
        attempt, self._attempt = self._attempt, asyncio.get_running_loop().create_future()
        attempt.set_result(failure)


class EventLog:
    """The events of a run of this process, in memory on their way to the store and to listeners."""

    def __init__(
        self, run: Run, writer: Writer, events: Sequence[Event] = (), *, asked: Sequence[Message] = ()
    ) -> None:
        self.run, self.asked = run, asked
        self.cancel_requested = asyncio.Event()
        self.ended_elsewhere = False  # by another process, which took this one for dead
        self.listened_at = 0.0  # in another process
        self._writer = writer
        self._events = list(events)  # of a run that is continued
        self._queued = len(events)
        self._timer: asyncio.TimerHandle | None = None
        self._more = asyncio.Event()
        self._over = False

    def append(self, kind: str, data: Mapping[str, Any]) -> Event:
        event = Event(len(self._events) + 1, kind, data)
        self._events.append(event)
        if self._timer is None:
            self._save_soon()
        self._wake()
        return event

    def end(self) -> Work:
        """No more events come; what stores the last ones, in the transaction that ends the run.

        On their own they would be read in other processes as the end of a run that may still be interrupted.
        """
        self._over = True
        self._wake()
        if self._timer is None:
            return lambda _: None
        self._timer.cancel()
        return self._unsaved()

    async def after(self, number: int) -> AsyncGenerator[Event]:
        while True:
            while number < len(self._events):
                number += 1
                yield self._events[number - 1]
            if self._over:
                return
            await self._more.wait()

    def save(self) -> None:
        """Queue the events so far: `Writer.flush` waits until they are on disk."""
        if self._timer is not None:
            self._timer.cancel()
            self._writer.put(self._unsaved())

    def _save_soon(self) -> None:
        def save() -> None:
            if self._writer.has_room:
                self._writer.put(self._unsaved())
            else:
                self._save_soon()  # the events wait here, for a larger row

        self._timer = asyncio.get_running_loop().call_later(SAVE_SECONDS, save)

    def _unsaved(self) -> Work:
        self._timer = None
        new = self._events[self._queued :]
        self._queued = len(self._events)
        data = packed([event.as_dict() for event in new])
        row = {"run_id": self.run.run_id, "first": new[0].number, "last": self._queued, "data": data}
        return lambda connection: connection.execute(_ADD_EVENTS, row)

    def _wake(self) -> None:
        # Each listener waits for the next event on this one, which is spent with it.
        self._more.set()
        self._more = asyncio.Event()


async def stored_events(database: Database, run_id: str, after: int) -> Sequence[Event]:
    """The run's events after that number, as far as they are in the database."""
    query = select(_events.c.data).where(_events.c.run_id == run_id, _events.c.last > after)
    rows = await database.rows(query.order_by(_events.c.first))
    events = (Event(item.pop("id"), item.pop("type"), item) for row in rows for item in unpacked(row.data))
    return [event for event in events if event.number > after]
