"""Wait for what a test needs to have happened."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable


async def until(holds: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition holds; the seconds are generous, because the machine may be busy.

    Raises:
        TimeoutError: it does not hold in time.
    """
    async with asyncio.timeout(seconds):
        while not (await found if isawaitable(found := holds()) else found):
            await asyncio.sleep(0.02)
