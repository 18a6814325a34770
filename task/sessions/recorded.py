"""Record one run of a front door that can do without the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from task.errors import StoreUnavailable
from task.loop import LoopObserver, SilentObserver
from task.sessions.opening import StoreAccess
from task.sessions.traces import TraceStart

if TYPE_CHECKING:
    from task.sessions.service import Store

logger = logging.getLogger(__name__)


@asynccontextmanager
async def recorded(access: StoreAccess, start: TraceStart) -> AsyncGenerator[LoopObserver]:
    """An observer for one run, whose trace is on disk when the block is left.

    Nobody waits for it when the run was cancelled, and nothing fails because the database does.
    """
    store = await access.soon()
    if store is None:
        yield SilentObserver()
        return
    observer = store.traces.observer(start)
    try:
        yield observer
    except asyncio.CancelledError:
        observer.end("cancelled")
        raise
    except Exception as error:
        observer.end("failed", error)
        raise
    else:
        observer.end("finished")
    finally:
        store.traces.queue(observer)
        await _written(store, observer.trace_id)


async def _written(store: Store, trace_id: str) -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return
    try:
        await store.flush()
    except StoreUnavailable as error:
        logger.warning("the trace %s is not on disk yet: %s", trace_id, error)
