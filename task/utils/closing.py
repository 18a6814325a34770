"""Close several things, whatever becomes of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

SECONDS = 10.0


async def close_all(*closes: Callable[[], Awaitable[object]], seconds: float = SECONDS) -> None:
    """Call all of them in order, each for at most `seconds`; one that fails or hangs is told to the log."""
    for close in closes:
        try:
            async with asyncio.timeout(seconds):
                await close()
        except Exception:
            logger.exception("%s failed", getattr(close, "__qualname__", "closing"))
