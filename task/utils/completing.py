"""Do what must not stop half way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def done_to_its_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """What the work gives. It is done to its end also when the caller is cancelled meanwhile, who is cancelled then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
