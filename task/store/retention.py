"""Forget what is old, and what is more than was asked to be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Table, and_, delete, or_, select

from task.store import tables
from task.store.database import Database
from task.store.session_rows import remove

DAY = 86_400
AT_ONCE = 500  # rows of one transaction: others must get their turn


@dataclass(frozen=True, slots=True)
class Retention:
    """How long and how many: days since the last change, and the newest so many; None keeps all."""

    days: float | None = 30
    sessions: int | None = 10_000
    traces: int | None = 100_000


async def forget(database: Database, retention: Retention, clock: Callable[[], float]) -> int:
    """Remove what the rules no longer keep; how many sessions, traces, runs and turns that were."""
    sessions, traces, runs, turns = tables.sessions.c, tables.traces.c, tables.runs.c, tables.turns.c
    oldest = clock() - retention.days * DAY if retention.days is not None else None
    gone = await _forget(database, tables.sessions, sessions.updated_at, oldest, retention.sessions)
    gone += await _forget(database, tables.traces, traces.started_at, oldest, retention.traces)
    gone += await _forget(database, tables.runs, runs.started_at, oldest, retention.traces)
    gone += await _forget(database, tables.turns, turns.kept_at, oldest, retention.traces)
    await _tidy(database, clock() - DAY)
    return gone


async def _forget(database: Database, table: Table, time: Column[float], oldest: float | None, most: int | None) -> int:
    last, gone = await _last_kept(database, table, time, most), 0
    rules = [time < oldest] if oldest is not None else []
    rules += [or_(time < last[0], and_(time == last[0], table.c.id < last[1]))] if last is not None else []
    if not rules:
        return 0
    # A run that is in progress is in nobody's way.
    alive = [table.c.status != "running"] if "status" in table.c else []
    query = select(table.c.id).where(or_(*rules), *alive).limit(AT_ONCE)

    def work(connection: Connection) -> int:
        ids = [row.id for row in connection.execute(query)]
        if table is tables.sessions:
            return remove(connection, table.c.id.in_(ids))
        return connection.execute(delete(table).where(table.c.id.in_(ids))).rowcount

    while some := await database.write(work):
        gone += some
    return gone


async def _last_kept(database: Database, table: Table, time: Column[float], most: int | None) -> Any:
    if most is None:
        return None
    query = select(time, table.c.id).order_by(time.desc(), table.c.id.desc()).offset(max(most - 1, 0)).limit(1)
    return await database.read(lambda connection: connection.execute(query).first())


async def _tidy(database: Database, before: float) -> None:
    def work(connection: Connection) -> None:
        for table, time in (
            (tables.approvals, tables.approvals.c.expires_at),
            (tables.grants, tables.grants.c.expires_at),
            (tables.counters, tables.counters.c.filled_at),
        ):
            connection.execute(delete(table).where(time < before))

    await database.write(work)
