"""One database: connections for reading, transactions for writing, and what its failures mean."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Table, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from task.errors import SettingsError, StoreUnavailable

logger = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds to wait for another process's transaction, and for a server to answer
READERS = 4
DAMAGED = ("not a database", "malformed")  # SQLite's words
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


@dataclass(frozen=True, slots=True)
class Database:
    """The two engines of one database. SQLite has one writing connection, which waits for its turn."""

    reader: AsyncEngine
    writer: AsyncEngine

    @property
    def is_sqlite(self) -> bool:
        return self.writer.dialect.name == "sqlite"

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """A connection outside any transaction.

        Raises:
            StoreUnavailable: the database cannot be used now.
        """
        async with _explained(), self.reader.connect() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction, on disk when the block is left and gone when it raises.

        Raises:
            StoreUnavailable: the database cannot be used now.
        """
        async with _explained(), self.writer.begin() as connection:
            yield connection

    async def close(self) -> None:
        await self.writer.dispose()
        await self.reader.dispose()


def open_database(url: str, patience: float = PATIENCE) -> Database:
    """The database at `url`: `sqlite:///folder/file.db` or `postgresql://user:password@host/name`.

    `patience` is how many seconds to wait for another process's transaction, and for a server to answer.

    Raises:
        SettingsError: the address names no such database, or its folder cannot be made.
    """
    address = _address(url)
    if address.get_backend_name() != "sqlite":
        engine = create_async_engine(
            address, pool_size=10, max_overflow=20, pool_timeout=patience, pool_pre_ping=True,
            connect_args={"timeout": patience},
        )  # fmt: skip
        return Database(engine.execution_options(isolation_level="AUTOCOMMIT"), engine)
    _make_folder(Path(address.database or ""))
    reader = create_async_engine(
        address, pool_size=READERS, max_overflow=0, isolation_level="AUTOCOMMIT", pool_timeout=patience * 2
    )
    writer = create_async_engine(address, pool_size=1, max_overflow=0, pool_timeout=patience * 2)
    for engine in (reader, writer):
        event.listen(engine.sync_engine, "connect", partial(_prepare, patience))
    event.listen(writer.sync_engine, "begin", _begin_to_write)
    return Database(reader, writer)


async def insert_new(connection: AsyncConnection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert the row unless its key is taken; whether it was inserted."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    return bool((await connection.execute(insert(table).values(row).on_conflict_do_nothing())).rowcount)


def _address(url: str) -> URL:
    try:
        address = make_url(url)
        driver = DRIVERS[address.get_backend_name()]
    except (ArgumentError, KeyError):
        raise SettingsError(
            "AGENT_STORE__URL: it must be sqlite:///folder/file.db or postgresql://user:password@host/name. Correct it."
        ) from None
    return address.set(drivername=driver)


def _make_folder(file: Path) -> None:
    if not file.name:
        raise SettingsError("AGENT_STORE__URL: sqlite needs a file, such as sqlite:///folder/file.db. Correct it.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)  # it holds conversations
    except OSError as error:
        raise SettingsError(f"AGENT_STORE__URL: {file} cannot be written: {error.strerror}. Name another.") from error


def _prepare(patience: float, connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin below: the driver would begin them too late
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")  # what was committed survives a power cut
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_to_write(connection: Any) -> None:
    # A transaction that reads first and then wants to write is refused at once when another one has written meanwhile.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@asynccontextmanager
async def _explained() -> AsyncGenerator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (OperationalError, InterfaceError) as error:
        raise unavailable(error) from error
    except DBAPIError as error:
        if not error.connection_invalidated and not _lost(error):
            raise
        raise unavailable(error) from error
    except (TimeoutError, PoolTimeout, OSError) as error:
        raise unavailable(error) from error


def _lost(error: DBAPIError) -> bool:
    told = str(error.orig).lower()
    return isinstance(error.orig, (OSError, TimeoutError)) or any(word in told for word in ("connection", *DAMAGED))


def unavailable(error: BaseException) -> StoreUnavailable:
    """What a failure of the database means to a person; the log gets the driver's words."""
    told = str(getattr(error, "orig", error))
    logger.error("the store cannot be used: %s", told)
    if "locked" in told or "busy" in told:
        return StoreUnavailable("The store is busy: another process holds its database. Try again in a moment.")
    if "full" in told or "No space" in told or "disk I/O" in told:
        return StoreUnavailable("The store is full: there is no room left on its disk. An operator has to make room.")
    if any(word in told for word in DAMAGED):
        return StoreUnavailable("The store's file is no database, or it is damaged. An operator has to look at it.")
    if "readonly" in told or "unable to open" in told:
        return StoreUnavailable("The store's file cannot be written. An operator has to look at its permissions.")
    return StoreUnavailable("The store's database does not answer. Try again in a moment.")
