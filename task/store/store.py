"""The store as its users see it: opened once per process, with the chores that keep it in order."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Column, Connection, Table, delete, or_, select, tuple_

from task.errors import StoreUnavailable
from task.shared.limits import RateLimits, buckets_in_memory
from task.store import tables
from task.store.access import StoreOptions
from task.store.approvals import StoredApprovals, StoredGrants
from task.store.database import Database, open_database
from task.store.keys import Keys, Prompts, SealedTexts, StoredBuckets
from task.store.processes import BEAT_SECONDS, Processes
from task.store.runs import Runs
from task.store.schema import migrate
from task.store.sessions import Sessions, remove
from task.store.traces import Traces
from task.store.writer import Writer

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.3
RETENTION_SECONDS = 3600.0
SNAPSHOTS, NOTE = "snapshots", "store"  # in the data folder: a folder for each task; in that, which store has it
DAY = 86_400
AT_ONCE = 500  # rows that one transaction removes: others must get their turn


@dataclass(frozen=True, slots=True)
class Store:
    """Sessions, runs, traces, approvals, grants, keys, memories and rate limits of one database."""

    sessions: Sessions
    runs: Runs
    traces: Traces
    approvals: StoredApprovals
    grants: StoredGrants
    keys: Keys
    limits: RateLimits
    prompts: Prompts
    sealed: SealedTexts
    database: Database
    writer: Writer
    processes: Processes
    options: StoreOptions
    chores: tuple[asyncio.Task[None], ...] = ()

    def start_chores(self) -> tuple[asyncio.Task[None], ...]:
        """What keeps the store in order while this process uses it; `close` ends it."""

        async def check_processes() -> None:
            await self.runs.renew()
            await self.processes.interrupt_orphans()

        async def tidy() -> None:
            if await self.processes.first_to("tidy", RETENTION_SECONDS):
                await self.forget()
            if self.options.data_dir is not None:
                await self.sweep(self.options.data_dir / SNAPSHOTS)

        chores = ((check_processes, BEAT_SECONDS), (self.runs.poll_requests, POLL_SECONDS), (tidy, RETENTION_SECONDS))
        return tuple(asyncio.create_task(_repeat_every(*chore)) for chore in chores)

    async def forget(self) -> int:
        """Remove what the retention does not keep; the number of rows."""
        options = self.options
        oldest = self.processes.clock() - options.days * DAY if options.days is not None else None
        removed = 0
        for table, age, most in (
            (tables.sessions, tables.sessions.c.updated_at, options.sessions),
            (tables.traces, tables.traces.c.started_at, options.traces),
            (tables.runs, tables.runs.c.started_at, options.traces),
        ):
            removed += await _forget_rows(self.database, table, age, oldest, most)
        for age in (
            tables.approvals.c.expires_at,
            tables.grants.c.expires_at,
            tables.counters.c.ready_at,
            tables.request_keys.c.created_at,
        ):
            await self.database.execute(delete(age.table).where(age < self.processes.clock() - DAY))
        return removed

    async def sweep(self, folder: Path) -> None:
        """Remove the snapshots of runs that the store no longer has. Folders without a note of this store stay: another
        store may share the data folder."""
        notes = await asyncio.to_thread(lambda: list(folder.glob(f"*/{NOTE}")))
        named = tables.runs.c.id.in_([note.parent.name for note in notes])
        kept = {row.id for row in await self.database.rows(select(tables.runs.c.id).where(named))} if notes else set()

        def work() -> None:
            for note in notes:
                if note.parent.name not in kept and note.read_text(encoding="utf-8") == self.database.place:
                    shutil.rmtree(note.parent, ignore_errors=True)

        await asyncio.to_thread(work)

    async def close(self) -> None:
        """Write what is queued, and close."""
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


async def open_store(options: StoreOptions) -> Store:
    """The store at `options.url` (`sqlite:///folder/file.db`, `postgresql://…`), its schema brought up to date.

    What dead processes left unfinished is marked as interrupted. Where processes may have different clocks the
    database's counts.

    Raises:
        SettingsError: the address names no database that can be used.
        StoreVersionError: its tables are not those this version works with.
        StoreUnavailable: the database does not answer.
    """
    secret = await asyncio.to_thread(options.fingerprint) if options.fingerprint is not None else None
    database = open_database(options.url, options.patience)
    processes = Processes(database, options.clock, secret)
    try:
        await migrate(database, allowed=options.migrate)
        await processes.beat()
        await processes.interrupt_orphans()
        for disagreement in await processes.disagreements():
            logger.warning("%s", disagreement)
    except BaseException:
        await database.close()
        raise
    # From here on tasks run that only `close` ends, so that nothing below may fail.
    now, writer = processes.clock, Writer(database)
    stored = options.shared or not database.is_sqlite
    take = StoredBuckets(database, now).take if stored else buckets_in_memory(now)
    store = Store(
        Sessions(database, now),
        Runs(database, writer, processes, now),
        Traces(database, writer, processes.own_id, options.prices, now),
        StoredApprovals(database, now),
        StoredGrants(database, now),
        Keys(database, now),
        RateLimits(take, options.redis),
        Prompts(database),
        SealedTexts(database),
        database,
        writer,
        processes,
        options,
    )
    return replace(store, chores=store.start_chores()) if options.chores else store


async def _repeat_every(chore: Callable[[], Awaitable[object]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore()
        except StoreUnavailable as error:
            logger.warning("a chore of the store is postponed: %s", error)
        except Exception:
            logger.exception("a chore of the store failed")


async def _forget_rows(
    database: Database, table: Table, time: Column[float], oldest: float | None, most: int | None
) -> int:
    rules = [time < oldest] if oldest is not None else []
    if most is not None:
        newest = select(time, table.c.id).order_by(time.desc(), table.c.id.desc())
        last = await database.first(newest.offset(max(most - 1, 0)).limit(1))
        rules += [tuple_(time, table.c.id) < tuple_(*last)] if last is not None else []
    if not rules:
        return 0
    alive = [table.c.status != "running"] if "status" in table.c else []  # a run in progress is never removed
    query = select(table.c.id).where(or_(*rules), *alive).limit(AT_ONCE)

    def work(connection: Connection) -> int:
        ids = [row.id for row in connection.execute(query)]
        if table is tables.sessions:
            return remove(connection, table.c.id.in_(ids))
        return connection.execute(delete(table).where(table.c.id.in_(ids))).rowcount

    # One transaction after the other: a request that writes must not wait for all of them.
    removed = 0
    while some := await database.write(work):
        removed += some
    return removed
