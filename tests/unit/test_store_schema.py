"""The migrations make exactly the tables the code works with."""

from __future__ import annotations

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from task.sessions.migrate import HEAD, migrate
from task.sessions.store import open_database
from task.sessions.tables import metadata
from tests.support.stores import sqlite_url


async def test_a_migrated_database_has_the_tables_the_code_works_with(tmp_path: Path) -> None:
    database = open_database(sqlite_url(tmp_path))
    await migrate(database)
    await migrate(database)  # a second time changes nothing
    await database.close()
    engine = create_engine(sqlite_url(tmp_path))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_the_newest_migration_is_the_one_the_code_expects() -> None:
    config = Config()
    config.set_main_option("script_location", "task.sessions:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD
