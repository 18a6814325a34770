"""A look at the store from outside: how far its tables are, and how much is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table, func, select, text

from task.store import tables
from task.store.database import Database
from task.store.migrate import HEAD, version_of

SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found. `version` is the last migration the database has seen, None where it is empty; the counts are
    zero where the tables are not today's."""

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


async def surveyed(database: Database) -> Survey:
    """What is in the database; nothing in it is changed.

    Raises:
        StoreUnavailable: it cannot be used.
    """
    return await database.read(_survey)


def _survey(connection: Connection) -> Survey:
    version, size = version_of(connection), _size(connection)
    if version != HEAD:
        return Survey(version, size)
    return Survey(version, size, _count(connection, tables.sessions), _count(connection, tables.traces))


def _size(connection: Connection) -> int:
    if connection.dialect.name == "postgresql":
        return connection.scalar(text("SELECT pg_database_size(current_database())")) or 0
    files = [Path(f"{connection.engine.url.database}{suffix}") for suffix in SUFFIXES]
    return sum(file.stat().st_size for file in files if file.exists())


def _count(connection: Connection, table: Table) -> int:
    return connection.scalar(select(func.count()).select_from(table)) or 0
