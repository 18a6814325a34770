"""The runs of this process while they last: their events in memory, on their way to the store and to listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from task.store.records import Event
from task.store.wire import packed

SAVE_SECONDS = 0.1


class LiveRun:
    """A run's events, and who waits for more of them. `cancel_asked` is set when somebody presses stop, `heard_at` is
    when somebody last listened at another process.

    `queue` gets the events of every tenth of a second as one row of the table of events.
    """

    def __init__(self, run_id: str, queue: Callable[[dict[str, Any]], None]) -> None:
        self.run_id = run_id
        self.cancel_asked = asyncio.Event()
        self.heard_at = 0.0
        self._queue = queue
        self._events: list[Event] = []
        self._queued = 0
        self._timer: asyncio.TimerHandle | None = None
        self._listening: list[asyncio.Future[None]] = []
        self._over = False

    def append(self, kind: str, data: Mapping[str, Any]) -> Event:
        event = Event(len(self._events) + 1, kind, data)
        self._events.append(event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SAVE_SECONDS, self._save)
        if self._listening:
            self._wake()
        return event

    def end(self) -> None:
        """No event follows; what is not saved is queued."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._save()
        self._wake()

    async def after(self, number: int) -> AsyncGenerator[Event]:
        """The events after that number: those that are there, then each as it comes, until the run has ended."""
        while True:
            while number < len(self._events):
                number += 1
                yield self._events[number - 1]
            if self._over:
                return
            more = asyncio.get_running_loop().create_future()
            self._listening.append(more)
            await more

    def _save(self) -> None:
        self._timer = None
        new = self._events[self._queued :]
        self._queued = len(self._events)
        data = packed([event.as_dict() for event in new])
        self._queue({"run_id": self.run_id, "first": new[0].number, "last": self._queued, "data": data})

    def _wake(self) -> None:
        listening, self._listening = self._listening, []
        for future in listening:
            if not future.done():
                future.set_result(None)
