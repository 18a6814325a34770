"""A session of the older protocol, opened by a task of its own and shared by all calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from task.telemetry.operations import leave_operation
from task.tools.mcp.results import asked_to_stop

if TYPE_CHECKING:
    from mcp import Client

END_SECONDS = 2.0

Ended = Callable[[], None]
Opening = Callable[
    [Ended], AbstractAsyncContextManager["Client"]
]  # what it is given is called when the server has ended


@dataclass
class _Opened:
    """One opening of the session; after `retired` it ends with the last call that borrowed it."""

    client: asyncio.Future[Client]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    borrowers: int = 0
    retired: bool = False
    owner: asyncio.Task[None] | None = None

    def retire(self) -> None:
        self.retired = True
        if not self.borrowers:
            self.stop.set()

    @property
    def alive(self) -> bool:
        return not self.retired and self.owner is not None and not self.owner.done()


class OwnedSession:
    """Lends the client of one session, and replaces a lost session.

    Only the task that entered the SDK's client may leave it, so requests borrow it from an owner task.
    """

    def __init__(self, opening: Opening, seconds: float, end_seconds: float = END_SECONDS) -> None:
        self._opening = opening
        self._seconds = seconds
        self._end_seconds = end_seconds
        self._lock = asyncio.Lock()
        self._current: _Opened | None = None
        self._owners: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def borrowed(self) -> AsyncGenerator[Client]:
        """The client for one call. A failed call retires the session: later calls open another."""
        opened = await self._open_one()
        opened.borrowers += 1
        try:
            yield opened.client.result()
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or not asked_to_stop():
                opened.retired = True
            raise
        finally:
            opened.borrowers -= 1
            if opened.retired and not opened.borrowers:
                opened.stop.set()

    async def close(self) -> None:
        if self._current is not None:
            self._current.stop.set()
        if self._owners:
            _, late = await asyncio.wait(self._owners, timeout=self._end_seconds)
            for owner in late:
                owner.cancel()
                await asyncio.wait({owner}, timeout=self._end_seconds)

    async def _open_one(self) -> _Opened:
        async with self._lock:
            if self._current is None or not self._current.alive:
                self._current = await self._opened()
            return self._current

    async def _opened(self) -> _Opened:
        opened = _Opened(asyncio.get_running_loop().create_future())
        opened.owner = asyncio.create_task(self._own(opened))
        self._owners.add(opened.owner)
        opened.owner.add_done_callback(self._owners.discard)
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.shield(opened.client)
        except BaseException:
            opened.stop.set()
            opened.owner.cancel()
            raise
        return opened

    async def _own(self, opened: _Opened) -> None:
        leave_operation()  # the session outlives the run that opens it
        try:
            async with self._opening(opened.retire) as client:
                opened.client.set_result(client)
                await opened.stop.wait()
        except BaseException as error:
            if not opened.client.done():
                cause = error if isinstance(error, Exception) else ConnectionError("the session was not opened")
                opened.client.set_exception(cause)
                opened.client.exception()  # retrieved here, as nobody may be waiting any more
            if asked_to_stop():
                raise
