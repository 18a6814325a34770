"""Places and threads of which each caller has a part, so that the work of one does not hold up another's."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakValueDictionary

_THREADS, _CALLERS = 4, 64
_Result = TypeVar("_Result")
# Whom the current task, and those it starts, work for, where a door knows it; "" is the product itself.
ON_BEHALF_OF: ContextVar[str] = ContextVar("on behalf of", default="")


class Shares:
    """Places for work in one event loop; who waits is served in turn, and a caller has at most half, rounded up."""

    def __init__(self, places: int) -> None:
        self._share, self._places = (places + 1) // 2, asyncio.Semaphore(places)
        self._own: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # while somebody uses it

    @asynccontextmanager
    async def place(self, caller: str | None = None) -> AsyncGenerator[None]:
        """Wait for a place of this caller's, by default the current one's, and keep it inside the block."""
        name = ON_BEHALF_OF.get() if caller is None else caller
        own = self._own.setdefault(name, asyncio.Semaphore(self._share))
        async with own, self._places:
            yield


class SharedThreads(ThreadPoolExecutor):
    """An event loop's threads: each caller has a few, which end some time after the caller's last work."""

    def __init__(self) -> None:
        super().__init__(1)
        # A pool that is dropped does what it was given, and ends.
        self._pool_of = lru_cache(_CALLERS)(lambda caller: ThreadPoolExecutor(_THREADS, "shared"))

    def submit(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> Future[_Result]:
        """Run it in a thread of the current caller's."""
        return self._pool_of(ON_BEHALF_OF.get()).submit(fn, *args, **kwargs)
