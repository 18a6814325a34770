"""Shared places of which one caller gets a share, so that others find one free: to wait for, and threads."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

_Result = TypeVar("_Result")
# Whom the current task, and those it starts, work for, where a door knows it; "" is the product itself.
ON_BEHALF_OF: ContextVar[str] = ContextVar("caller", default="")


def share_of(places: int) -> int:
    """How many of the places one caller may have: half of them, rounded up."""
    return (places + 1) // 2


class Shares:
    """Places for work in one event loop; who waits for one is served in turn, each caller within its share."""

    def __init__(self, places: int) -> None:
        self._share, self._places = share_of(places), asyncio.Semaphore(places)
        self._own: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # while somebody uses it

    @asynccontextmanager
    async def place(self, caller: str | None = None) -> AsyncGenerator[None]:
        """Wait for a place of this caller's, by default the current one's, and keep it inside the block."""
        name = ON_BEHALF_OF.get() if caller is None else caller
        own = self._own.setdefault(name, asyncio.Semaphore(self._share))
        async with own, self._places:
            yield


class SharedThreads(ThreadPoolExecutor):
    """Threads that work for all callers; each has its share of them, and its further work waits."""

    def __init__(self, threads: int, name: str = "shared") -> None:
        super().__init__(threads, name)
        self._share = share_of(threads)
        self._queues: dict[str, deque[Callable[[], None]]] = {}  # of the callers with work: what has no thread yet
        self._running: dict[str, int] = {}
        self._guard = Lock()

    def submit(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> Future[_Result]:
        """Run it in the current caller's turn. Raises: RuntimeError: the threads have been shut down."""
        caller, future = ON_BEHALF_OF.get(), Future[_Result]()
        with self._guard:
            queue = self._queues.setdefault(caller, deque())
            queue.append(partial(_run, future, partial(fn, *args, **kwargs)))
            running = self._running.get(caller, 0)
            if running < self._share:
                super().submit(self._serve, caller, queue)
                self._running[caller] = running + 1
        return future

    def _serve(self, caller: str, queue: deque[Callable[[], None]]) -> None:
        work = queue.popleft()
        while True:
            work()
            with self._guard:
                if not queue:
                    self._running[caller] -= 1
                    if not self._running[caller]:
                        del self._running[caller], self._queues[caller]
                    return
                try:
                    super().submit(self._serve, caller, queue)  # behind the others' that wait for a thread
                except RuntimeError:  # shutting down: what was accepted is done
                    work = queue.popleft()
                else:
                    return


def _run(future: Future[_Result], work: Callable[[], _Result]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
