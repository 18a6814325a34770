"""Run a blocking function that may never end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def in_own_thread(function: Callable[..., _Result], **arguments: Any) -> _Result:
    """What the function gives, from a thread of its own, which goes on alone when the caller is cancelled.

    The event loop's own threads are few: some functions that hang would hold up everybody's work, and the end of the
    process as well.
    """
    ended: Future[_Result] = Future()
    ended.set_running_or_notify_cancel()
    work = partial(copy_context().run, partial(function, **arguments))
    Thread(target=_settle, args=(ended, work), name=getattr(function, "__name__", None), daemon=True).start()
    return await asyncio.wrap_future(ended)


def _settle(ended: Future[_Result], work: Callable[[], _Result]) -> None:
    try:
        result = work()
    except BaseException as error:
        ended.set_exception(error)
    else:
        ended.set_result(result)
