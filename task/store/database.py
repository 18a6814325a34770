"""One database: work on a connection off the event loop, pages of rows, and what failures mean."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Table,
    create_engine,
    event,
    exc,
    literal,
    make_url,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite

from task.errors import InvalidRequest, SettingsError, StoreUnavailable
from task.shares import Shares
from task.store.records import Page, cursor_after, position
from task.store.tls import tls_of

if TYPE_CHECKING:
    from sqlalchemy import Column, Delete, Insert, Row, Select, Update

logger = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds to wait for another process's transaction, and for a server to answer
LONGEST_SECONDS = 60.0  # one visit to a server: a frozen one never answers, not even with an error
READERS = 4
CONNECTIONS = 20  # of one process to a server, kept open: to open one takes longer than what a request does with it
MAX_LIMIT = 1000  # rows of a page
DAMAGED = "not a database|malformed"  # SQLite's words
LOST = rf"^(28|3D|08|53|57|25006)|connection|{DAMAGED}"
WRONG_URL = "AGENT_STORE__URL: it must be sqlite:///folder/file.db or postgresql://user:password@host/name. Correct it."

T = TypeVar("T")


class Database(ABC):
    """A database. Work on it is a plain function of a connection and may be called twice.

    `place` names the database without its password. `reserved` is the same database for the short work with which a
    process keeps its lease: it does not wait for connections that requests have taken.
    """

    is_sqlite: bool
    place: str
    reserved: Database

    @abstractmethod
    async def read(self, work: Callable[[Connection], T]) -> T:
        """The work's result, outside any transaction: each of its statements is committed alone.

        Raises:
            StoreUnavailable: the database cannot be used now.
        """

    @abstractmethod
    async def write(self, work: Callable[[Connection], T]) -> T:
        """The work's result, when all it wrote is on disk; when it raises, nothing is.

        Raises:
            StoreUnavailable: the database cannot be used now.
        """

    @abstractmethod
    async def close(self) -> None: ...

    async def rows(self, query: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
        """The rows that the query finds; raises `StoreUnavailable`."""
        return await self.read(lambda connection: connection.execute(query).all())

    async def first(self, query: Select[*tuple[Any, ...]]) -> Row[*tuple[Any, ...]] | None:
        """The first row that the query finds; raises `StoreUnavailable`."""
        return await self.read(lambda connection: connection.execute(query).first())

    async def page(
        self, query: Select[Any], time: Column[float], limit: int, cursor: str | None, build: Callable[[Row[Any]], T]
    ) -> Page[T]:
        """A page of the rows that the query finds, the newest by `time` first, each as `build` renders it.

        Raises:
            InvalidRequest: a malformed cursor, or a limit that is not between 1 and 1000.
            StoreUnavailable: the database cannot be used now.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"limit must be between 1 and {MAX_LIMIT}")
        key = time.table.c.id
        if cursor is not None:
            query = query.where(tuple_(time, key) < tuple_(*position(cursor)))
        query = query.order_by(time.desc(), key.desc()).limit(limit + 1)  # the last one shows that a page follows

        def work(connection: Connection) -> Page[T]:
            rows = connection.execute(query).all()
            last = rows[limit - 1] if len(rows) > limit else None
            following = cursor_after(getattr(last, time.name), last.id) if last is not None else None
            return Page(tuple(map(build, rows[:limit])), following)

        return await self.read(work)

    async def execute(self, statement: Insert | Update | Delete, values: Mapping[str, Any] | None = None) -> int:
        """The number of rows that the statement changed, when they are on disk; raises `StoreUnavailable`."""
        return await self.write(lambda connection: connection.execute(statement, values).rowcount)


def open_database(url: str, patience: float = PATIENCE, longest: float = LONGEST_SECONDS) -> Database:
    """The database at `url`: `sqlite:///folder/file.db` or `postgresql://user:password@host/name`.

    A busy one is waited for `patience` seconds, a visit to a server takes at most `longest`.

    Raises:
        SettingsError: the address names no such database, or its folder cannot be created.
    """
    try:
        address = make_url(url)
    except (exc.ArgumentError, ValueError):  # the second is a port that is not a number
        raise SettingsError(WRONG_URL) from None
    match address.get_backend_name():
        case "sqlite":
            return SqliteDatabase(address, patience)
        case "postgresql" | "postgres":
            return PostgresDatabase(address, patience, longest)
        case _:
            raise SettingsError(WRONG_URL)


class SqliteDatabase(Database):
    """A file in WAL mode: one thread writes while others read. A whole transaction is one call in that thread."""

    is_sqlite = True

    def __init__(self, address: URL, patience: float) -> None:
        file = Path(address.database or "")
        if not file.name:
            raise SettingsError("AGENT_STORE__URL: sqlite needs a file, such as sqlite:///folder/file.db. Correct it.")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # it holds conversations
        except OSError as error:
            text = f"AGENT_STORE__URL: {file} cannot be written: {error.strerror}. Name another."
            raise SettingsError(text) from error
        self.place = f"SQLite in {address.database}"
        self.reserved = self  # its visits are short, and one file has one writer
        address = address.set(drivername="sqlite+pysqlite")
        engine = partial(create_engine, address, max_overflow=0, hide_parameters=True)  # errors are logged
        self.reader = engine(pool_size=READERS, isolation_level="AUTOCOMMIT")
        self.writer = engine(pool_size=1)
        for engine in (self.reader, self.writer):
            event.listen(engine, "connect", partial(_prepare, patience))
        # A transaction that reads first is refused when it writes after another one has written in between.
        event.listen(self.writer, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        self._reading = ThreadPoolExecutor(READERS, "store-read")
        self._writing = ThreadPoolExecutor(1, "store-write")
        self._readers, self._writers = Shares(READERS), Shares(1)

    async def read(self, work: Callable[[Connection], T]) -> T:
        async with self._readers.place():
            return await asyncio.get_running_loop().run_in_executor(self._reading, _call, self.reader.connect, work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        async with self._writers.place():
            return await asyncio.get_running_loop().run_in_executor(self._writing, _call, self.writer.begin, work)

    async def close(self) -> None:
        for threads in (self._writing, self._reading):
            await asyncio.to_thread(threads.shutdown)
        self.writer.dispose()
        self.reader.dispose()


class PostgresDatabase(Database):
    """A server, which several processes may share. One of the connections is `reserved`."""

    is_sqlite = False

    def __init__(
        self, address: URL, patience: float, longest: float = LONGEST_SECONDS, connections: int = CONNECTIONS
    ) -> None:
        self._longest = longest
        port = f":{address.port}" if address.port else ""
        self.place = f"PostgreSQL at {address.host or 'localhost'}{port}/{address.database or ''}"
        self.reserved = self if connections == 1 else PostgresDatabase(address, patience, longest, 1)
        from sqlalchemy.ext.asyncio import create_async_engine

        self._places = Shares(size := max(connections - 1, 1))
        self._engine = create_async_engine(
            address.set(drivername="postgresql+asyncpg", query={}),
            pool_size=size,
            max_overflow=0,
            pool_use_lifo=True,
            pool_timeout=patience,
            connect_args={"timeout": patience, **tls_of(address)},
            hide_parameters=True,
        )

        def check_open(connection: Any, *_: Any) -> None:
            # The driver knows when a server has gone; `pool_pre_ping` needs three visits to find that out.
            if connection.driver_connection.is_closed():
                raise exc.DisconnectionError  # the pool opens another

        event.listen(self._engine.sync_engine, "checkout", check_open)
        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def read(self, work: Callable[[Connection], T]) -> T:
        with _explained():
            async with asyncio.timeout(self._longest), self._places.place(), self._reader.connect() as connection:
                return await connection.run_sync(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        with _explained():
            async with asyncio.timeout(self._longest), self._places.place(), self._engine.begin() as connection:
                return await connection.run_sync(work)

    async def close(self) -> None:
        await self._engine.dispose()
        if self.reserved is not self:
            await self.reserved.close()


def to_row(table: Table, record: object, **given: Any) -> dict[str, Any]:
    """The fields of the record that are columns of the table, and what is `given` in their place."""
    names = [name for name in _fields_of(type(record)) if name in table.c and name not in given]
    return {name: getattr(record, name) for name in names} | given


def from_row(kind: type[T], row: Row[Any], **given: Any) -> T:
    """The record whose fields are the row's columns of their names, and what is `given` in their place."""
    columns = row._mapping
    names = [name for name in _fields_of(kind) if name in columns and name not in given]
    return kind(**{name: columns[name] for name in names}, **given)


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def insert_new(connection: Connection, table: Table, row: Mapping[str, Any], *conditions: ColumnElement[bool]) -> bool:
    """Insert the row if these conditions hold, unless its key is taken; whether it was inserted."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    if not conditions:
        return bool(connection.execute(insert(table).on_conflict_do_nothing(), row).rowcount)
    values = select(*(literal(value, table.c[name].type) for name, value in row.items())).where(*conditions)
    statement = insert(table).from_select(list(row), values).on_conflict_do_nothing()
    return bool(connection.execute(statement).rowcount)


def _prepare(patience: float, connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions start below: the driver would start them too late
    cursor, deadline = connection.cursor(), time.monotonic() + patience
    cursor.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
    # Of several processes that turn a new file into WAL mode, SQLite refuses all but one without waiting.
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    cursor.execute("PRAGMA synchronous = FULL")  # what was committed survives a power cut
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _call(connect: Callable[[], Any], work: Callable[[Connection], T]) -> T:
    with _explained(), connect() as connection:
        return work(connection)


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, TimeoutError, exc.TimeoutError, OSError) as error:
        raise _unavailable(error) from error
    except exc.DBAPIError as error:
        is_lost = error.connection_invalidated or isinstance(error.orig, (OSError, TimeoutError))
        is_lost = is_lost or re.search(LOST, _described(error), re.IGNORECASE) is not None
        if isinstance(error, exc.IntegrityError) or not is_lost:
            raise
        raise _unavailable(error) from error


# What a failure's SQLSTATE and message have in them, and what an operator reads then; the first that fits counts.
# Classes of SQLSTATE. Source: PostgreSQL, appendix A.
_REASONS = (
    ("^(28|3D)", "The store's server refuses this agent. An operator has to correct AGENT_STORE__URL."),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "The certificate of the store's server is not trusted. An operator has to name its authority with sslrootcert "
        "in AGENT_STORE__URL, or the host as the certificate does.",
    ),
    (
        "^25006",
        "The store's database is read-only. An operator has to let AGENT_STORE__URL lead to the primary, or lift "
        "default_transaction_read_only.",
    ),
    ("rejected SSL upgrade", "The store's server does not offer TLS. An operator has to correct AGENT_STORE__URL."),
    ("locked|busy", "The store is busy: another process holds its database. Try again in a moment."),
    ("full|No space|disk I/O", "The store is full: there is no room left on its disk. An operator has to make room."),
    (DAMAGED, "The store's file is not a database, or it is damaged. An operator has to check it."),
    ("readonly|unable to open", "The store's file cannot be written. An operator has to check its permissions."),
    ("", "The store's database does not answer. Try again in a moment."),
)


def _described(error: BaseException) -> str:
    # PostgreSQL's code of five characters comes first.
    cause = getattr(error, "orig", error)
    return f"{getattr(cause, 'sqlstate', None) or ''} {cause}"


def _unavailable(error: BaseException) -> StoreUnavailable:
    text = _described(error)
    logger.error("the store cannot be used: %s", text.strip())
    return StoreUnavailable(next(reason for pattern, reason in _REASONS if re.search(pattern, text)))
