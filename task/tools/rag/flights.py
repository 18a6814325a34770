"""Work that several requests want at once is done once, and goes on while one of them still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")
_News = TypeVar("_News")


@dataclass(slots=True)
class _Flight(Generic[_Result, _News]):
    listeners: list[Callable[[_News], None]] = field(default_factory=list)
    task: asyncio.Task[_Result] | None = None

    def tell(self, news: _News) -> None:
        for listener in tuple(self.listeners):
            listener(news)


class Flights(Generic[_Result, _News]):
    """Work by key; its news go to all who wait for it. It is cancelled when the last one has gone."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[_Result, _News]] = {}

    async def join(
        self,
        key: str,
        start: Callable[[Callable[[_News], None]], Coroutine[Any, Any, _Result]],
        listener: Callable[[_News], None],
    ) -> _Result:
        """The result of the work that runs under `key`, started with `start` where none does."""
        flight = self._flights.get(key)
        if flight is None or flight.task is None or flight.task.done():
            flight = self._flights[key] = _Flight()
            flight.task = asyncio.create_task(start(flight.tell))
        task = flight.task
        flight.listeners.append(listener)
        try:
            return await asyncio.shield(task)
        finally:
            flight.listeners.remove(listener)
            if not flight.listeners:
                await self._land(key, flight, task)

    async def _land(self, key: str, flight: _Flight[_Result, _News], task: asyncio.Task[_Result]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
