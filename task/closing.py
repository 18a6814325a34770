"""Close what was opened, finish what was started, and bridge to work that blocks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from functools import cache, partial
from threading import Lock, Thread
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 10.0
_starting = Lock()
_Result = TypeVar("_Result")


async def close_all(*closes: Callable[[], Awaitable[object]], seconds: float = CLOSING_SECONDS) -> None:
    """Call all of them in order, each for at most `seconds`; one that fails or hangs is logged."""
    for close in closes:
        try:
            async with asyncio.timeout(seconds):
                await close()
        except Exception:
            logger.exception("%s failed", getattr(close, "__qualname__", "closing"))


async def run_to_completion(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of `work`, which is finished even if the caller is cancelled; the cancellation follows then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def together(works: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """The results of all; the error of the first that fails ends the others, and is raised as it is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:  # a TaskGroup would raise a group
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


async def in_own_thread(function: Callable[..., _Result], **arguments: Any) -> _Result:
    """What the function gives, from a thread of its own, which goes on alone when the caller is cancelled.

    The event loop's own threads are few: a few functions that hang would hold up all other work, and the end of the
    process as well.
    """
    ended: Future[_Result] = Future()
    ended.set_running_or_notify_cancel()
    context = copy_context()

    def settle() -> None:
        try:
            ended.set_result(context.run(partial(function, **arguments)))
        except BaseException as error:
            ended.set_exception(error)

    Thread(target=settle, name=getattr(function, "__name__", None), daemon=True).start()
    return await asyncio.wrap_future(ended)


def run_blocking(function: Callable[..., Coroutine[Any, Any, _Result]], *arguments: Any) -> _Result:
    """The result of `function`, for callers without an event loop: it runs in the one background loop of the process.

    Raises:
        RuntimeError: an event loop runs in this thread already, which the call would block.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        name = getattr(function, "__name__", "the asynchronous function")
        raise RuntimeError(f"An event loop is running in this thread. Use `await {name}(...)` instead.")
    with _starting:  # first calls may come from several threads, and what the loop runs belongs to one loop
        loop = _background_loop()
    work = asyncio.run_coroutine_threadsafe(function(*arguments), loop)
    try:
        return work.result()
    except BaseException:
        work.cancel()  # Ctrl-C reaches the caller, not the background thread
        raise


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="background-loop", daemon=True).start()
    return loop
