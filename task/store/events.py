"""The events of runs: in memory while a run lasts, on their way to listeners and to the database, and read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, insert, select

from task.store import tables
from task.store.database import Database
from task.store.records import Event, packed, unpacked
from task.store.writer import Work, Writer

SAVE_SECONDS = 0.1
_runs, _events = tables.runs, tables.events
_NAMED = {column.name: bindparam(column.name, type_=column.type) for column in _events.c}
# A run that was removed with its session, or ended by another process, gets no more events.
_RUNNING = select(_runs.c.id).where(_runs.c.id == _NAMED["run_id"], _runs.c.status == "running")
_ADD_EVENTS = insert(_events).from_select(list(_NAMED), select(*_NAMED.values()).where(_RUNNING.exists()))


class EventLog:
    """The events of a run of this process, in memory on their way to the store and to listeners."""

    def __init__(self, run_id: str, writer: Writer) -> None:
        self.run_id = run_id
        self.cancel_requested = asyncio.Event()
        self.ended_elsewhere = False  # by another process, which took this one for dead
        self.listened_at = 0.0  # in another process
        self._writer = writer
        self._events: list[Event] = []
        self._queued = 0
        self._timer: asyncio.TimerHandle | None = None
        self._listening: list[asyncio.Future[None]] = []
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
            more = asyncio.get_running_loop().create_future()
            self._listening.append(more)
            await more

    def _save_soon(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SAVE_SECONDS, self._save)

    def _save(self) -> None:
        if self._writer.has_room:
            self._writer.put(self._unsaved())
        else:
            self._save_soon()  # the events wait here, for a larger row

    def _unsaved(self) -> Work:
        self._timer = None
        new = self._events[self._queued :]
        self._queued = len(self._events)
        data = packed([event.as_dict() for event in new])
        row = {"run_id": self.run_id, "first": new[0].number, "last": self._queued, "data": data}
        return lambda connection: connection.execute(_ADD_EVENTS, row)

    def _wake(self) -> None:
        listening, self._listening = self._listening, []
        for future in listening:
            if not future.done():
                future.set_result(None)


async def stored_events(database: Database, run_id: str, after: int) -> Sequence[Event]:
    """The run's events after that number, as far as they are in the database."""
    query = select(_events.c.data).where(_events.c.run_id == run_id, _events.c.last > after)
    rows = await database.rows(query.order_by(_events.c.first))
    events = (Event(item.pop("id"), item.pop("type"), item) for row in rows for item in unpacked(row.data))
    return [event for event in events if event.number > after]
