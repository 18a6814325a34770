"""Wait for what a test needs to have happened."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable

import psutil


async def until(holds: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition holds; the seconds are generous, because the machine may be busy.

    Raises:
        TimeoutError: it does not hold in time.
    """
    async with asyncio.timeout(seconds):
        while not (await found if isawaitable(found := holds()) else found):
            await asyncio.sleep(0.02)


def runs(process: psutil.Process) -> bool:
    """Whether the process has not ended yet; it may do so while it is looked at."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
