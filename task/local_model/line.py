"""The queue of requests to a model that answers one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

from task.errors import ProviderError

BUSY = "The local model is busy: {waiting} requests are waiting already. Try again in a minute."


class Line:
    """First come, first served; up to `waiting` requests wait behind the one that is served."""

    def __init__(self, waiting: int = 8) -> None:
        self._limit = waiting + 1
        self._places: list[QueuePosition] = []

    @contextmanager
    def place(self) -> Generator[QueuePosition]:
        """A place at the end, left with the block.

        Raises:
            ProviderError: the line is full.
        """
        if len(self._places) >= self._limit:
            text = BUSY.format(waiting=self._limit - 1)
            raise ProviderError(text, status_code=503, code="busy", display_message=text)
        place = QueuePosition(self._places)
        self._places.append(place)
        try:
            yield place
        finally:
            self._places.remove(place)
            for other in self._places:
                other.moved.set()


class QueuePosition:
    def __init__(self, places: list[QueuePosition]) -> None:
        self._places = places
        self.moved = asyncio.Event()

    async def turn(self) -> AsyncGenerator[str]:
        """Ends when it is this one's turn; until then reports the position whenever it changes."""
        reported = 0
        while True:
            self.moved.clear()  # before looking: the line may move while a position is reported
            if not (ahead := self._places.index(self)):
                return
            if ahead != reported:
                reported = ahead
                yield f"Waiting for the local model: {ahead} ahead of this request."
            await self.moved.wait()
