"""Monotonic time that a test can move forward, and a limit on silence that follows it."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType


class Clock:
    """Seconds that only grow; `advance` is for tests and ends the limits that are due."""

    def __init__(self) -> None:
        self._offset = 0.0
        self.limits: set[IdleLimit] = set()

    def now(self) -> float:
        return time.monotonic() + self._offset

    def advance(self, seconds: float) -> None:
        self._offset += seconds
        for limit in tuple(self.limits):
            limit.check()


class IdleLimit:
    """Raises TimeoutError in its `async with` block once `seconds` have passed without a `touch`."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self.touch()

    async def __aenter__(self) -> IdleLimit:
        await self._timeout.__aenter__()
        self._clock.limits.add(self)
        self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._clock.limits.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        return await self._timeout.__aexit__(kind, error, traceback)

    def touch(self) -> None:
        self._touched = self._clock.now()

    def check(self) -> None:
        """End the block if it is due, else look again when it may be."""
        if self._timer is not None:
            self._timer.cancel()
        loop, left = asyncio.get_running_loop(), self._touched + self._seconds - self._clock.now()
        if left <= 0:
            self._clock.limits.discard(self)
            self._timeout.reschedule(loop.time())
        else:
            self._timer = loop.call_later(left, self.check)
