"""Writes off the path of an answer: what is waiting goes into one transaction, and whoever needs it on disk waits."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from sqlalchemy import Connection

from task.errors import StoreUnavailable, new_reference
from task.store.database import Database

logger = logging.getLogger(__name__)

Work = Callable[[Connection], object]

AT_ONCE = 200
GATHER_SECONDS = 0.1  # what nobody waits for may wait for company: a transaction costs more than what it writes
MOST_WAITING = 20_000
RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
FLUSH_SECONDS = 30.0
CLOSED = "The store is closed. Try again in a moment."


class Writer:
    """Does the works it is given in their order. While the database cannot be used they wait, and are tried again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[Work] = deque()
        self._given = self._done = 0
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._more, self._hurry = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._tell(StoreUnavailable(CLOSED)))

    def put(self, work: Work) -> None:
        """Have `work` done soon; it may be called twice when its transaction was lost."""
        if len(self._waiting) >= MOST_WAITING:
            logger.error("the store has been away for long: a write was given up")
            return
        self._waiting.append(work)
        self._given += 1
        self._more.set()

    async def flush(self) -> None:
        """Return when all that was put before is on disk.

        Raises:
            StoreUnavailable: it cannot be written now; it will be tried again.
        """
        if self._done >= self._given:
            return
        if self._task.done():
            raise StoreUnavailable(CLOSED)
        written = asyncio.get_running_loop().create_future()
        self._flushing.append((self._given, written))
        self._hurry.set()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await written
        except TimeoutError:
            raise StoreUnavailable("The store did not write in time. Try again in a moment.") from None

    async def close(self) -> None:
        """Write what is waiting, if that can be done now, and stop."""
        try:
            await self.flush()
        except StoreUnavailable as error:
            logger.error("%d writes of the store were lost: %s", len(self._waiting), error)  # noqa: TRY400
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._more.wait()
            with suppress(TimeoutError):
                # In Python 3.11 `wait_for` loses a cancellation that comes with its result, and this would run on.
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._hurry.wait()
            self._more.clear()
            self._hurry.clear()
            while self._waiting:
                try:
                    await self._write(list(islice(self._waiting, AT_ONCE)))
                    failures = 0
                except StoreUnavailable as error:
                    self._tell(error)
                    await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                    failures += 1

    async def _write(self, works: Sequence[Work]) -> None:
        try:
            await self._database.write(lambda connection: _all(works, connection))
        except StoreUnavailable:
            raise
        except Exception:
            await self._one_by_one(works)
        else:
            self._drop(len(works))
        self._tell(None)

    async def _one_by_one(self, works: Sequence[Work]) -> None:
        for work in works:
            try:
                await self._database.write(work)
            except StoreUnavailable:
                raise
            except Exception:
                logger.exception("a write of the store failed (reference %s)", new_reference())
            self._drop(1)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._waiting.popleft()
        self._done += count

    def _tell(self, error: StoreUnavailable | None) -> None:
        for place, written in self._flushing:
            if written.done() or (error is None and place > self._done):
                continue
            if error is not None:
                written.set_exception(error)
            else:
                written.set_result(None)
        self._flushing = [item for item in self._flushing if not item[1].done()]


def _all(works: Sequence[Work], connection: Connection) -> None:
    for work in works:
        work(connection)
