"""The schema of the database: brought up to date by one process at a time, and reported without changing it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Table, func, inspect, select, text
from sqlalchemy.exc import DBAPIError

from task.errors import StoreUnavailable, StoreVersionError
from task.store import tables
from task.store.database import Database
from task.store.processes import alive
from task.store.tables import HEAD

ALEMBIC = Lock()  # held while Alembic works: it keeps its state in module-level names
LOCK = 0x6469616C  # any number that others of the same database server do not lock
SUFFIXES = ("", "-wal", "-shm")
LAST_UNSAID = "0009"  # of processes that do not say which version of the tables they know
APART = 1  # versions of the tables that work together: each migration only adds to what the one before it left
MIGRATION_SECONDS = 50.0
# PostgreSQL: whoever needs a table waits behind the change that itself waits for a reader, such as a backup.
TABLE_SECONDS = 2.0
PAUSE_SECONDS = 0.5
LOCK_NOT_AVAILABLE = "55P03"
logger = logging.getLogger(__name__)


async def migrate(database: Database, *, allowed: bool = True, seconds: float = MIGRATION_SECONDS) -> str | None:
    """Run the migrations that the database has not seen, and return the version that was found; None: it was empty.

    Nothing is loaded for it when there are none. Others that do the same wait for the first one. A store that is one
    version newer is used as it is.

    Raises:
        StoreVersionError: the store is newer by more than one version, a process that uses it is older by more than
            one, or it is older and its tables may not be changed (`allowed` is false).
        StoreUnavailable: the database does not answer, or its tables are in use for longer than `seconds`.
    """
    found = await database.read(_version)
    if found == HEAD:
        return found
    if _newer(found):
        _check_newer(found)
        logger.info("the store's tables are one version newer (%s) than this one (%s); both work together", found, HEAD)
        return found
    if not allowed:
        state = f"are those of version {found}" if found is not None else "do not exist yet"
        raise StoreVersionError(
            f"The store's tables {state}, and this version needs {HEAD}. AGENT_STORE__MIGRATE is off, so run "
            "`dial-agent store migrate`."
        )
    try:
        async with asyncio.timeout(seconds):
            while (before := await _attempt(database)) is _IN_USE:  # noqa: ASYNC110 - the database tells nobody
                await asyncio.sleep(PAUSE_SECONDS)
    except TimeoutError:
        raise StoreUnavailable(
            f"The store's tables could not be changed within {seconds:.0f} s, because others use them. Nothing was "
            "changed; try again."
        ) from None
    return before


_IN_USE = "in use"


async def _attempt(database: Database) -> str | None:
    while not ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110 - its holder may need this event loop, or another
        await asyncio.sleep(0.01)
    try:
        return await database.write(_migrate)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
            raise
        return _IN_USE
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
        return _newer(self.version)

    @property
    def too_new(self) -> bool:
        """Whether it is so much newer that this version cannot use it."""
        return self.newer and _steps(HEAD, self.version) > APART

    @property
    def older(self) -> bool:
        """Whether the next start changes its tables."""
        return self.version is not None and self.version != HEAD and not self.newer


def survey(connection: Connection) -> Survey:
    """What is in the database; nothing in it is changed."""
    version, size = _version(connection), _size(connection)
    found = Survey(version, size)
    if version is None or found.older or found.too_new:
        return found
    return Survey(version, size, _count(connection, tables.sessions), _count(connection, tables.traces))


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))


def _migrate(connection: Connection) -> str | None:
    if connection.dialect.name == "postgresql":  # SQLite's transaction is the only one already
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{TABLE_SECONDS:.0f}s'"))
    found = _version(connection)
    if found == HEAD:
        return found
    if _newer(found):  # by another one that was waited for
        _check_newer(found)
        return found
    _check_processes(connection, found)
    from alembic import command
    from alembic.config import Config

    attributes: dict[str, Any] = {"connection": connection}
    config = Config(attributes=attributes)
    config.set_main_option("script_location", "task.store:migrations")
    command.upgrade(config, "head")
    return found


def _newer(found: str | None) -> bool:
    # A store of another product has a version that is no number.
    return found is not None and (found > HEAD or not found.isdecimal())


def _steps(older: str, newer: str | None) -> int:
    return int(newer) - int(older) if newer is not None and newer.isdecimal() else APART + 1


def _check_newer(found: str | None) -> None:
    if _steps(HEAD, found) > APART:
        raise StoreVersionError(
            f"The store was written by a newer version ({found}) of this product, more than one ahead of this one "
            f"({HEAD}). Start that version, or use another store."
        )


def _check_processes(connection: Connection, found: str | None) -> None:
    columns = {column["name"] for column in inspect(connection).get_columns("processes")} if found is not None else {}
    if "tables_version" not in columns:  # processes did not say yet what they know
        return
    known = [row.tables_version or LAST_UNSAID for row in alive(connection)]
    if old := [version for version in known if _steps(version, HEAD) > APART]:
        users = "a process" if len(old) == 1 else f"{len(old)} processes"
        raise StoreVersionError(
            f"The store is in use by {users} of an older version ({min(old)}), more than one behind this one ({HEAD}). "
            "Stop what is older, or upgrade to a version in between first."
        )


def _size(connection: Connection) -> int:
    if connection.dialect.name == "postgresql":
        return connection.scalar(text("SELECT pg_database_size(current_database())")) or 0
    files = [Path(f"{connection.engine.url.database}{suffix}") for suffix in SUFFIXES]
    return sum(file.stat().st_size for file in files if file.exists())


def _count(connection: Connection, table: Table) -> int:
    return connection.scalar(select(func.count()).select_from(table)) or 0
