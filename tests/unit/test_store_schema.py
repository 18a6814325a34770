"""The migrations make exactly the tables the code works with."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from task.store.database import open_database
from task.store.schema import HEAD, migrate
from task.store.tables import metadata
from tests.support.stores import opened, sqlite_url


async def test_a_migrated_database_has_the_tables_the_code_works_with(tmp_path: Path) -> None:
    database = open_database(sqlite_url(tmp_path))
    await migrate(database)
    await migrate(database)  # a second time changes nothing
    await database.close()
    engine = create_engine(sqlite_url(tmp_path))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


async def test_what_an_older_version_has_stored_is_kept(tmp_path: Path) -> None:
    engine = create_engine(sqlite_url(tmp_path))
    config = Config()
    config.set_main_option("script_location", "task.store:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text(
                "INSERT INTO runs (id, owner, status, process, started_at, cancel_asked) "
                "VALUES ('run_1', 'ann', 'finished', 'p', 1, 0)"
            )
        )
    engine.dispose()
    async with opened(sqlite_url(tmp_path)) as store:
        assert (await store.runs.get("ann", "run_1")).status == "finished"


def test_the_newest_migration_is_the_one_the_code_expects() -> None:
    config = Config()
    config.set_main_option("script_location", "task.store:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD
