"""A clock that only moves when a test moves it."""

import asyncio
import heapq
from itertools import count


class FakeClock:
    """`now()` in seconds; `sleep()` waits until `advance()` has gone that far.

    With `runs=True` a sleep moves the clock itself and returns at once. `slept` lists every sleep asked for.
    """

    def __init__(self, start: float = 0.0, *, runs: bool = False) -> None:
        self.slept: list[float] = []
        self._now = start
        self._runs = runs
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self._runs:
            self._now += max(seconds, 0.0)
            await asyncio.sleep(0)
            return
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken.wait()

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers in the order of their times, and let what they wake run."""
        end = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, woken = heapq.heappop(self._sleepers)
            woken.set()
            await self._settle()
        self._now = end

    async def _settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
