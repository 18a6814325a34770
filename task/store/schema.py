"""The schema of the database: brought up to date by one process at a time, and reported without changing it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Table, func, inspect, select, text

from task.errors import StoreUnavailable
from task.store import tables
from task.store.database import Database

HEAD = "0009"  # the newest migration in `task/store/migrations/versions`
ALEMBIC = Lock()  # held while Alembic works: it keeps its state in module-level names
LOCK = 0x6469616C  # any number that others of the same database server do not lock
SUFFIXES = ("", "-wal", "-shm")


async def migrate(database: Database) -> None:
    """Run the migrations that the database has not seen; nothing is loaded for it when there are none.

    Raises:
        StoreUnavailable: the database does not answer, or a newer version has written it.
    """
    if await database.read(_version) != HEAD:
        while not ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110 - its holder may need this event loop, or another
            await asyncio.sleep(0.01)
        try:
            await database.write(_migrate)
        finally:
            ALEMBIC.release()


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of a database. `version` is the last migration it has seen, None where it is empty; the counts are zero
    where the tables are not the current ones."""

    version: str | None
    size: int
    sessions: int = 0
    traces: int = 0

    @property
    def newer(self) -> bool:
        """Whether a newer version of the product has written it."""
        return self.version is not None and self.version > HEAD

    @property
    def older(self) -> bool:
        """Whether the next start changes its tables."""
        return self.version is not None and self.version < HEAD


def survey(connection: Connection) -> Survey:
    """What is in the database; nothing in it is changed."""
    version, size = _version(connection), _size(connection)
    if version != HEAD:
        return Survey(version, size)
    return Survey(version, size, _count(connection, tables.sessions), _count(connection, tables.traces))


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))


def _migrate(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's transaction is the only one already
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    found = _version(connection)
    if found == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    attributes: dict[str, Any] = {"connection": connection}
    config = Config(attributes=attributes)
    config.set_main_option("script_location", "task.store:migrations")
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreUnavailable(
            f"The store was written by a newer version ({found}) of this product. Start that version, or use another "
            "store."
        ) from error


def _size(connection: Connection) -> int:
    if connection.dialect.name == "postgresql":
        return connection.scalar(text("SELECT pg_database_size(current_database())")) or 0
    files = [Path(f"{connection.engine.url.database}{suffix}") for suffix in SUFFIXES]
    return sum(file.stat().st_size for file in files if file.exists())


def _count(connection: Connection, table: Table) -> int:
    return connection.scalar(select(func.count()).select_from(table)) or 0
