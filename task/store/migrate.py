"""Bring the database's schema up to date, one process at a time."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import Any

from sqlalchemy import Connection, inspect, text

from task.errors import StoreUnavailable
from task.store.database import Database

HEAD = "0003"  # the newest migration in `task/store/migrations/versions`
ALEMBIC = Lock()  # held while it works: what it works on stands in module-level names
LOCK = 0x6469616C  # any number that others of the same database server do not lock
_NEWER = "The store was written by a newer version ({found}) of this product. Start that version, or another store."


async def migrate(database: Database) -> None:
    """Run the migrations that the database has not seen; nothing is loaded for it when there are none.

    Raises:
        StoreUnavailable: the database does not answer, or a newer version has written it.
    """
    if await database.read(version_of) != HEAD:
        while not ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110 - its holder may need this event loop, or another
            await asyncio.sleep(0.01)
        try:
            await database.write(_migrate)
        finally:
            ALEMBIC.release()


def _migrate(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's transaction is the only one already
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    found = version_of(connection)
    if found != HEAD:
        _upgrade(connection, found)


def version_of(connection: Connection) -> str | None:
    """The last migration that the database has seen; None while it has no tables of ours."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))


def _upgrade(connection: Connection, found: str | None) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", "task.store:migrations")
    settings: dict[str, Any] = {"connection": connection}
    config.attributes.update(settings)
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreUnavailable(_NEWER.format(found=found)) from error
