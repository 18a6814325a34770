"""The store as its users see it: opened once per process, with the chores that keep it in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from task.errors import StoreUnavailable
from task.store.approvals import Approvals
from task.store.database import PATIENCE, Database, open_database
from task.store.grants import StoredGrants
from task.store.keys import Keys
from task.store.limits import RateLimits
from task.store.migrate import migrate
from task.store.processes import BEAT_SECONDS, Processes
from task.store.retention import Retention, forget
from task.store.runs import Runs
from task.store.sessions import Sessions
from task.store.trace_records import Price, Trace
from task.store.traces import Traces
from task.store.turns import Turns
from task.store.writer import Writer

logger = logging.getLogger(__name__)

HEAR_SECONDS = 0.3
RETENTION_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Store:
    """Sessions, runs, traces, approvals, grants, keys and rate limits of one database."""

    sessions: Sessions
    runs: Runs
    traces: Traces
    turns: Turns
    approvals: Approvals
    grants: StoredGrants
    keys: Keys
    limits: RateLimits
    database: Database
    writer: Writer
    processes: Processes
    retention: Retention
    chores: tuple[asyncio.Task[None], ...] = ()

    async def flush(self) -> None:
        """Return when all that was queued is on disk.

        Raises:
            StoreUnavailable: it cannot be written now; it will be tried again.
        """
        await self.writer.flush()

    async def forget(self) -> int:
        """Remove what the retention no longer keeps; how many rows that were."""
        return await forget(self.database, self.retention, self.processes.clock)

    async def close(self) -> None:
        """Write what is waiting, and close."""
        for chore in self.chores:
            chore.cancel()
        if self.chores:
            await asyncio.wait(self.chores)
        await self.writer.close()
        try:
            await self.processes.leave()
        except StoreUnavailable as error:
            logger.warning("%s", error)
        await self.database.close()


async def open_store(
    url: str,
    *,
    prices: Mapping[str, Price] | None = None,
    retention: Retention | None = None,
    clock: Callable[[], float] = time.time,
    chores: bool = True,
    patience: float = PATIENCE,
    finished: Callable[[Trace], None] = lambda _: None,
) -> Store:
    """The store at `url` (`sqlite:///folder/file.db`, `postgresql://…`), its schema brought up to date.

    What dead processes left unfinished is marked as interrupted. Without `chores` nothing is done by itself later:
    for commands that look once. `patience` is how many seconds a busy database is waited for;
    `finished` hears of every trace that is complete.

    Raises:
        SettingsError: the address names no database that can be used.
        StoreUnavailable: the database does not answer, or a newer version has written it.
    """
    database = open_database(url, patience)
    try:
        await migrate(database)
        store = await _opened(database, prices or {}, retention or Retention(), clock, chores)
        return replace(store, traces=replace(store.traces, finished=finished))
    except BaseException:
        await database.close()
        raise


async def _opened(
    database: Database, prices: Mapping[str, Price], retention: Retention, clock: Callable[[], float], chores: bool
) -> Store:
    processes = Processes(database, clock)
    await processes.enter()
    writer = Writer(database)
    runs = Runs(database, writer, processes, clock)

    async def expire() -> None:
        await processes.beat()
        await processes.interrupt_orphans()

    async def tidy() -> None:
        await forget(database, retention, clock)

    try:
        await processes.interrupt_orphans()
    except BaseException:
        await writer.close()
        raise
    work = ((expire, BEAT_SECONDS), (runs.hear_others, HEAR_SECONDS), (tidy, RETENTION_SECONDS))
    return Store(
        Sessions(database, clock),
        runs,
        Traces(database, writer, processes.own_id, prices, clock),
        Turns(database, writer, clock),
        Approvals(database, clock),
        StoredGrants(database, clock),
        Keys(database, clock),
        RateLimits(database, clock),
        database,
        writer,
        processes,
        retention,
        tuple(asyncio.create_task(_again_and_again(*chore)) for chore in work) if chores else (),
    )


async def _again_and_again(chore: Callable[[], Awaitable[object]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore()
        except StoreUnavailable as error:
            logger.warning("a chore of the store has to wait: %s", error)
        except Exception:
            logger.exception("a chore of the store failed")
