"""What keeps the server polite: results kept for a while, equal requests joined, a rate, and a pause when blocked."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from cachetools import TTLCache

T = TypeVar("T")
Clock = Callable[[], float]


class Busy(Exception):
    """Too many requests in this minute; `seconds` until the next may come."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = math.ceil(seconds)


@dataclass
class RateLimit:
    """So many requests a minute, at most two thirds of them for one principal."""

    per_minute: int
    clock: Clock = time.monotonic
    _taken: deque[tuple[float, str]] = field(default_factory=deque[tuple[float, str]])

    def take(self, principal: str = "") -> None:
        """Count one request.

        Raises:
            Busy: this minute's are used up, or this principal's share of them.
        """
        now = self.clock()
        while self._taken and now - self._taken[0][0] >= 60:
            self._taken.popleft()
        own = [taken for taken in self._taken if taken[1] == principal]
        for taken, limit in ((self._taken, self.per_minute), (own, math.ceil(self.per_minute * 2 / 3))):
            if len(taken) >= limit:
                raise Busy(60 - (now - taken[0][0]))
        self._taken.append((now, principal))


class Places:
    """So many at once, at most half of them for one principal."""

    def __init__(self, count: int) -> None:
        self._all, self._share = asyncio.Semaphore(count), count // 2
        self._own: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def taken(self, principal: str) -> AsyncGenerator[None]:
        """One place, when there is one."""
        own = self._own.setdefault(principal, asyncio.Semaphore(self._share))  # stays while it is held
        async with own, self._all:
            yield


@dataclass
class Breaker:
    """A pause after being blocked; DuckDuckGo blocks an address for tens of minutes, and asking on prolongs it."""

    seconds: float = 600
    clock: Clock = time.monotonic
    _until: float = 0

    def trip(self) -> None:
        self._until = self.clock() + self.seconds

    def left(self) -> int:
        """Seconds until the next attempt; 0 when one may be made."""
        return max(0, math.ceil(self._until - self.clock()))


class Kept(Generic[T]):
    """Results by key for a while; a key that is being worked on is not worked on twice."""

    def __init__(self, entries: int, seconds: float, clock: Clock = time.monotonic) -> None:
        self._done: TTLCache[Hashable, T] = TTLCache(entries, seconds, timer=clock)
        self._under_way: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The cached result, or that of `make`; failures are raised for all waiting callers and not cached."""
        if key in self._done:
            return self._done[key]
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._made(key, make))
            task.add_done_callback(_retrieve_exception)
            self._under_way[key] = task
        # Shielded: the first caller may leave while others wait.
        return await asyncio.shield(task)

    def __len__(self) -> int:
        return len(self._done)

    async def _made(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await make()
            self._done[key] = result
            return result
        finally:
            del self._under_way[key]


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # all waiting callers may have left
