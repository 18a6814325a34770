"""An event loop in which nothing depends on the machine: time passes when all wait, and work for threads is done in it.

What happens, and in which order, follows from the code and the dice alone, so a failure can be repeated.
"""

import asyncio
import random
import selectors
from collections.abc import Callable
from typing import Any

LONGEST_DETOUR = 60  # steps of the loop before, and again after, work for a thread


class _Clock(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and nothing will happen"
            self.now += max(timeout, 0.0)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock and threads of its own making; `dice` decide how long each thread takes."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)
        self._clock_resolution = 1e-9
        self.dice = random.Random(0)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._clock.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """The result of `func`, which is called here; what ends later does not wait for what began earlier."""
        return self.create_task(self._threaded(func, *args))

    async def _threaded(self, func: Callable[..., Any], *args: Any) -> Any:
        await self._detour()
        result = func(*args)
        await self._detour()
        return result

    async def _detour(self) -> None:
        for _ in range(self.dice.randrange(LONGEST_DETOUR) if self.dice.random() < 0.5 else 0):
            await asyncio.sleep(0)
