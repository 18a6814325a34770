"""Monotonic time that a test can move forward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType


class Timer:
    """One pending callback; `cancel` is safe to call at any time."""

    def __init__(self, clock: Clock, due: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._due = due
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        delay = max(0.0, self._due - self._clock.now())
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def cancel(self) -> None:
        self._clock.forget(self)
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        self._clock.forget(self)
        self._callback()


class Clock:
    """Seconds that only grow; `advance` is for tests and fires the timers that became due."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._timers: set[Timer] = set()

    def now(self) -> float:
        return time.monotonic() + self._offset

    def call_at(self, due: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self, due, callback)
        self._timers.add(timer)
        timer.arm()
        return timer

    def advance(self, seconds: float) -> None:
        self._offset += seconds
        for timer in tuple(self._timers):
            timer.arm()

    def forget(self, timer: Timer) -> None:
        self._timers.discard(timer)


class IdleLimit:
    """Raises TimeoutError in its `async with` block once `seconds` have passed without a `touch`."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._touched = clock.now()
        self._timeout = asyncio.timeout(None)
        self._timer: Timer | None = None

    async def __aenter__(self) -> IdleLimit:
        self._touched = self._clock.now()
        await self._timeout.__aenter__()
        self._watch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
        return await self._timeout.__aexit__(kind, error, traceback)

    def touch(self) -> None:
        self._touched = self._clock.now()

    def _watch(self) -> None:
        due = self._touched + self._seconds
        if due > self._clock.now():
            self._timer = self._clock.call_at(due, self._watch)
            return
        self._timeout.reschedule(asyncio.get_running_loop().time())
