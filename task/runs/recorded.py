"""Record one run of a front door that can do without the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from task.loop import LoopObserver, SilentObserver
from task.store.opening import StoreAccess
from task.store.traces import TraceStart


@asynccontextmanager
async def recorded(access: StoreAccess, start: TraceStart) -> AsyncGenerator[LoopObserver]:
    """An observer for one run, whose trace is written soon after the block is left.

    The chat keeps the conversation itself: nobody waits for the trace, and nothing fails because the database does.
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
