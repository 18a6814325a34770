"""Writes off the path of an answer: what is queued goes into one transaction, and flush waits until it is on disk."""

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
GATHER_SECONDS = 0.25  # unless flushed, writes wait for each other: a transaction costs more than what it writes
MOST_QUEUED = 20_000  # above it nothing new begins, and what is under way queues only its end
RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
FLUSH_SECONDS = 30.0
CLOSED = "The store is closed. Try again in a moment."


class Writer:
    """Does queued writes in their order. While the database cannot be used they stay queued and are retried.

    None is dropped: work that can wait, and work that starts something new, checks first that there is room.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: deque[Work] = deque()
        self._given = self._done = 0
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._more, self._hurry = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._resolve(StoreUnavailable(CLOSED)))

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        return self.waiting < MOST_QUEUED

    def admit(self) -> None:
        """Called before something new begins.

        Raises:
            StoreUnavailable: too much waits to be written.
        """
        if not self.has_room:
            raise StoreUnavailable(
                "The store is overloaded: too many changes wait to be written. Try again in a moment."
            )

    def put(self, work: Work) -> None:
        """Queue `work`; it may be called twice when its transaction was lost."""
        if self._task.done():
            logger.error("a write of the store was lost: it came after the store was closed")
            return
        self._queue.append(work)
        self._given += 1
        self._more.set()

    async def flush(self) -> None:
        """Return when all that was put before is on disk.

        Raises:
            StoreUnavailable: it cannot be written now; the writer retries.
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
        """Write what is queued, if that can be done now, and stop."""
        try:
            await self.flush()
        except StoreUnavailable as error:
            logger.error("%d writes of the store were lost: %s", len(self._queue), error)  # noqa: TRY400
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
            while self._queue:
                try:
                    await self._write(list(islice(self._queue, AT_ONCE)))
                    self._resolve(None)
                    failures = 0
                except StoreUnavailable as error:
                    self._resolve(error)
                    await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                    failures += 1

    async def _write(self, works: Sequence[Work]) -> None:
        def write_all(connection: Connection) -> None:
            for work in works:
                work(connection)

        try:
            await self._database.write(write_all)
        except StoreUnavailable:
            raise
        except Exception:
            if len(works) == 1:
                logger.exception("a write of the store failed (reference %s)", new_reference())
            else:  # one of them is at fault: the others are written alone
                for work in works:
                    await self._write([work])
                return
        for _ in works:
            self._queue.popleft()
        self._done += len(works)

    def _resolve(self, error: StoreUnavailable | None) -> None:
        for place, written in self._flushing:
            if written.done() or (error is None and place > self._done):
                continue
            if error is not None:
                written.set_exception(error)
            else:
                written.set_result(None)
        self._flushing = [item for item in self._flushing if not item[1].done()]
