"""Work that several requests wait for: done once, and cancelled when nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")
_News = TypeVar("_News")


@dataclass(slots=True)
class _Running(Generic[_Result, _News]):
    listeners: list[Callable[[_News], None]] = field(default_factory=list)
    task: asyncio.Task[_Result] | None = None

    def publish(self, news: _News) -> None:
        for listener in tuple(self.listeners):
            listener(news)


class SharedWork(Generic[_Result, _News]):
    """Work by key, whose news all waiting requests receive; it is cancelled when the last one has left."""

    def __init__(self) -> None:
        self._running: dict[str, _Running[_Result, _News]] = {}

    async def join(
        self,
        key: str,
        start: Callable[[Callable[[_News], None]], Coroutine[Any, Any, _Result]],
        listener: Callable[[_News], None] = lambda _: None,
    ) -> _Result:
        """The result of the work under `key`, which is started with `start` unless it is running."""
        running = self._running.get(key)
        if running is None or running.task is None or running.task.done():
            running = self._running[key] = _Running()
            running.task = asyncio.create_task(start(running.publish))
        task = running.task
        running.listeners.append(listener)
        try:
            return await asyncio.shield(task)
        finally:
            running.listeners.remove(listener)
            if not running.listeners:
                await self._end(key, running, task)

    async def _end(self, key: str, running: _Running[_Result, _News], task: asyncio.Task[_Result]) -> None:
        if self._running.get(key) is running:
            del self._running[key]
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
