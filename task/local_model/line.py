"""Who is answered next by a model that answers one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

from task.errors import ProviderError

BUSY = "The local model is busy: {waiting} requests are waiting already. Try again in a minute."


class Line:
    """First come, first served; `waiting` is how many may stand behind the one that is served."""

    def __init__(self, waiting: int = 8) -> None:
        self._limit = waiting + 1
        self._places: list[Place] = []

    @contextmanager
    def place(self) -> Generator[Place]:
        """A place at the end, left with the block.

        Raises:
            ProviderError: the line is full.
        """
        if len(self._places) >= self._limit:
            text = BUSY.format(waiting=self._limit - 1)
            raise ProviderError(text, status_code=503, code="busy", display_message=text)
        place = Place(self)
        self._places.append(place)
        try:
            yield place
        finally:
            self._places.remove(place)
            for other in self._places:
                other.moved.set()

    def ahead(self, place: Place) -> int:
        """How many are served before this one."""
        return self._places.index(place)


class Place:
    def __init__(self, line: Line) -> None:
        self._line = line
        self.moved = asyncio.Event()

    async def turn(self) -> AsyncGenerator[str]:
        """Ends when it is this one's turn; until then tells the position, as often as it changes."""
        told = 0
        while True:
            self.moved.clear()  # before the look: the line may move while somebody is told
            if not (ahead := self._line.ahead(self)):
                return
            if ahead != told:
                told = ahead
                yield f"Waiting for the local model: {ahead} before this one."
            await self.moved.wait()
