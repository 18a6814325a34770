"""`dial-agent store`: back up, restore, migrate and check the database of sessions, runs and traces."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task.cli.exits import Exit
from task.cli.keys import Config
from task.errors import InvalidRequest, StoreUnavailable

if TYPE_CHECKING:
    from task.store.database import Database
    from task.store.schema import Survey

app = typer.Typer(help="Back up, restore, migrate and check the store.", no_args_is_help=True)
SHOWN = 5  # problems of a damaged file
MIGRATION_SECONDS = 600.0

Backup = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]
Seconds = Annotated[float, typer.Option("--seconds", min=1, max=86_400, help="How long it may take, waiting included.")]


@app.command()
def backup(file: Backup, config: Config = None) -> None:
    """Copy the store to a file, also while the product runs; what was committed when the copy ends is in it."""
    source = _existing(_sqlite_file(_url(config)))
    if file.exists():
        raise InvalidRequest(f"{file} exists: name another file, or move it away")
    with _written_at_once(file) as partial, closing(_opened(source)) as store, closing(_new(partial)) as copy:
        store.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # a backup is one file
    print(f"{file} is written. {_held(_survey(file))}", file=sys.stderr)


@app.command()
def restore(file: Backup, config: Config = None) -> None:
    """Put a backup in the place of the store, which is kept beside it; nothing may be running."""
    url = _url(config)
    target = _sqlite_file(url)
    if problems := _problems(_existing(file)):
        raise InvalidRequest(f"{file} cannot be restored: {problems[0]}")
    found = _survey(file)
    if found.version is None or found.refusal:
        raise InvalidRequest(f"{file} cannot be restored: {found.refusal or 'it has no store of this product'}")
    kept = None
    if target.exists():
        if living := _on_database(url, _running):
            raise InvalidRequest(
                f"{target} is in use by {living} of the product's processes: stop the product first, then restore"
            )
        kept = _kept(target)
    with _written_at_once(target) as partial, closing(_opened(file)) as source, closing(_new(partial)) as copy:
        source.backup(copy)
    print(f"{target} is restored. {_held(found)}", file=sys.stderr)
    if kept is not None:
        print(f"The store of before is {kept}", file=sys.stderr)


@app.command()
def migrate(seconds: Seconds = MIGRATION_SECONDS, config: Config = None) -> None:
    """Bring the tables of the store up to date, also while agents of the version before use it; once for all replicas.

    Several at a time wait for one another. Exit code 1: the database does not answer, or its tables are in use for too
    long; 2: this version cannot use the store.
    """
    from task.store import schema
    from task.store.tables import HEAD

    async def migrated(database: Database) -> tuple[str, str | None]:
        return database.place, await schema.migrate(database, seconds=seconds)

    place, before = _on_database(_url(config), migrated, seconds)
    if before is None:
        print(f"{place}: its tables are created, version {HEAD}")
    elif before < HEAD:
        print(f"{place}: its tables are brought up to date, from version {before} to {HEAD}")
    else:
        newer = f"; they are newer than this version ({HEAD}), which works with them" if before > HEAD else ""
        print(f"{place}: its tables are up to date, version {before}{newer}")


@app.command()
def check(config: Config = None) -> None:
    """Read the whole store and print what it holds; exit code 1 where it is damaged."""
    url = _url(config)
    if not url.startswith("sqlite"):
        print(f"{_on_database(url, _place)}: {_held(_on_database(url, _surveyed))}. The server checks its own files.")
        return
    source = _existing(_sqlite_file(url))
    if problems := _problems(source):
        print(f"{source} is damaged: {'; '.join(problems)}\nRestore a backup: dial-agent store restore FILE")
        raise typer.Exit(Exit.FAILED)
    print(f"{source} is sound. {_held(_survey(source))}")


def _url(config: Path | None) -> str:
    from task.settings import load_settings

    return str(load_settings(config).store_options["url"])


def _sqlite_file(url: str) -> Path:
    from sqlalchemy import make_url

    if not url.startswith("sqlite"):
        raise InvalidRequest("The store is in PostgreSQL: use the server's own pg_dump and pg_restore")
    return Path(make_url(url).database or "")


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise InvalidRequest(f"There is no file {file}")
    return file


def _opened(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=30)


def _new(file: Path) -> sqlite3.Connection:
    file.touch(mode=0o600)  # it holds conversations
    return sqlite3.connect(file)


@contextmanager
def _written_at_once(file: Path) -> Generator[Path]:
    # A copy that is interrupted leaves the place as it was.
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(file)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{file} could not be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _problems(file: Path) -> list[str]:
    try:
        with closing(_opened(file)) as connection:
            rows = connection.execute(f"PRAGMA integrity_check({SHOWN})").fetchall()
            strays = connection.execute("PRAGMA foreign_key_check").fetchmany(SHOWN)
    except sqlite3.DatabaseError as error:
        return [str(error)]
    found = [str(row[0]) for row in rows if row[0] != "ok"]
    return found + [f"a row of {table} refers to a missing one of {parent}" for table, _, parent, _ in strays]


def _kept(target: Path) -> Path:
    with closing(_opened(target)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all is in the one file that is kept
    kept = target.with_name(f"{target.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    target.replace(kept)
    for suffix in ("-wal", "-shm"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
    return kept


def _survey(file: Path) -> Survey:
    from sqlalchemy import create_engine

    from task.store.schema import survey

    engine = create_engine(f"sqlite:///{file}")
    try:
        with engine.connect() as connection:
            return survey(connection)
    finally:
        engine.dispose()


def _on_database(url: str, work: Any, seconds: float | None = None) -> Any:
    import asyncio

    from task.store.database import LONGEST_SECONDS, PATIENCE, open_database

    async def run() -> Any:
        database = open_database(url, PATIENCE, seconds or LONGEST_SECONDS)
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


async def _place(database: Database) -> str:
    return database.place


async def _surveyed(database: Database) -> Survey:
    from task.store.schema import survey

    return await database.read(survey)


async def _running(database: Database) -> int:
    from task.store.processes import DatabaseClock, Processes
    from task.store.schema import FIRST

    found = await _surveyed(database)
    if found.version is None:
        return 0
    if found.version < FIRST:
        raise InvalidRequest(found.refusal)
    return len(await Processes(database, DatabaseClock(database, time.time)).living())


def _held(found: Survey) -> str:
    size = f"{found.size / 2**20:,.1f} MiB"
    if found.version is None:
        return f"No tables yet, {size}"
    if found.older or found.refusal:
        return f"Tables of version {found.version}, {size}"
    return f"Sessions: {found.sessions:,}, traces: {found.traces:,}, {size}"
