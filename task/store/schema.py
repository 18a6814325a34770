"""The schema of the database: brought up to date by one process at a time, and reported without changing it."""

import asyncio
import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table, func, inspect, select, text
from sqlalchemy.exc import DBAPIError

from task.errors import StoreUnavailable, StoreVersionError
from task.store import tables
from task.store.database import Database
from task.store.processes import alive
from task.store.tables import HEAD

FIRST = "0015"  # the first version of the tables from which migrations lead to today's
APART = 1  # versions of the tables that work together: each migration only adds to what the one before it left
LOCK = 0x6469616C  # any number that no other program locks on the same database server
MIGRATION_SECONDS = 50.0
# PostgreSQL: whoever needs a table waits behind the change that itself waits for a reader, such as a backup.
TABLE_SECONDS = 2.0
PAUSE_SECONDS = 0.1
LOCK_NOT_AVAILABLE = "55P03"
_ALEMBIC = threading.Lock()  # it keeps the connection of the migration that runs in globals
logger = logging.getLogger(__name__)


async def migrate(database: Database, *, allowed: bool = True, seconds: float = MIGRATION_SECONDS) -> str | None:
    """Run the migrations that the database has not seen, and return the version that was found; None: it was empty.

    Nothing is loaded for it when there are none. Others that do the same wait for the first one. A store that is one
    version newer is used unchanged.

    Raises:
        StoreVersionError: the store is newer by more than one version or from before the first release, a process that
            uses it is older by more than one, or it is older and its tables may not be changed (`allowed` is false).
        StoreUnavailable: the database does not answer, or its tables are in use for longer than `seconds`.
    """
    found = await database.read(_version)
    if _is_current(found):
        if found != HEAD:
            logger.info("the store's tables are one version newer (%s) than ours (%s); both work together", found, HEAD)
        return found
    if not allowed:
        state = f"are those of version {found}" if found is not None else "do not exist yet"
        raise StoreVersionError(
            f"The store's tables {state}, and this version needs {HEAD}. AGENT_STORE__MIGRATE is off, so run "
            "`dial-agent store migrate`."
        )
    try:
        async with asyncio.timeout(seconds):
            while True:
                if _ALEMBIC.acquire(blocking=False):
                    try:
                        return await database.write(_migrate)
                    except DBAPIError as error:
                        if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                            raise
                    finally:
                        _ALEMBIC.release()
                await asyncio.sleep(PAUSE_SECONDS)
    except TimeoutError:
        raise StoreUnavailable(
            f"The store's tables could not be changed within {seconds:.0f} s, because others use them. Nothing was "
            "changed; try again."
        ) from None


def _migrate(connection: Connection) -> str | None:
    if connection.dialect.name == "postgresql":  # SQLite's transaction is the only one already
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{TABLE_SECONDS:.0f}s'"))
    found = _version(connection)
    if _is_current(found):  # by the work of another one that was waited for
        return found
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "task.store:migrations")
    if found is None:
        command.upgrade(config, FIRST)
        command.stamp(config, "head")  # later migrations only add what a new store has already
        return found
    known = [row.tables_version for row in alive(connection)]
    if old := [version for version in known if int(HEAD) - int(version) > APART]:
        users = "a process" if len(old) == 1 else f"{len(old)} processes"
        raise StoreVersionError(
            f"The store is in use by {users} of an older version ({min(old)}), more than one behind this one ({HEAD}). "
            "Stop what is older, or upgrade to a version in between first."
        )
    command.upgrade(config, "head")
    return found


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))


def _is_current(found: str | None) -> bool:
    if reason := refusal(found):
        raise StoreVersionError(reason)
    return found is not None and found >= HEAD


def refusal(version: str | None) -> str:
    """Why a store with tables of this version cannot be used, as a sentence; empty where it can."""
    # A store of another product has a version that is not a number.
    if version is not None and (not version.isdecimal() or int(version) - int(HEAD) > APART):
        return (
            f"The store was written by a newer version ({version}) of this product, more than one ahead of this one "
            f"({HEAD}). Start that version, or use another store."
        )
    if version is not None and version < FIRST:
        return (
            f"The store was made before the first release of this product (its tables are of version {version}) and is "
            "neither changed nor read: back it up, move it away, and start again."
        )
    return ""


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of a database. `version` is the last migration it has seen, None where it is empty; the counts are zero
    where the tables are not the current ones. `refusal` says why this version of the product cannot use it."""

    version: str | None
    size: int
    sessions: int = 0
    traces: int = 0

    @property
    def refusal(self) -> str:
        return refusal(self.version)

    @property
    def newer(self) -> bool:
        """Whether it is one version newer, which works."""
        return not self.refusal and self.version is not None and self.version > HEAD

    @property
    def older(self) -> bool:
        """Whether the next start changes its tables."""
        return not self.refusal and self.version is not None and self.version < HEAD


def survey(connection: Connection) -> Survey:
    """What is in the database; nothing in it is changed."""
    if connection.dialect.name == "postgresql":
        size = connection.scalar(text("SELECT pg_database_size(current_database())")) or 0
    else:
        files = [Path(f"{connection.engine.url.database}{suffix}") for suffix in ("", "-wal", "-shm")]
        size = sum(file.stat().st_size for file in files if file.exists())
    found = Survey(_version(connection), size)
    if found.version is None or found.older or found.refusal:
        return found

    def count(table: Table) -> int:
        return connection.scalar(select(func.count()).select_from(table)) or 0

    return Survey(found.version, found.size, count(tables.sessions), count(tables.traces))
