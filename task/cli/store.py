"""`dial-agent store` and `dial-agent keys`: the database of sessions, runs, traces, and the keys of the HTTP door."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from sqlalchemy import create_engine, make_url

from task.cli import Exit
from task.cli.options import Config, on_store, read_settings, write
from task.cli.traces import columns
from task.errors import InvalidRequest, StoreUnavailable
from task.store import schema
from task.store.database import LONGEST_SECONDS, PATIENCE, Database, open_database
from task.store.processes import alive
from task.store.records import iso
from task.store.schema import FIRST, Survey, survey
from task.store.tables import HEAD

SHOWN = 5  # problems of a damaged file
MIGRATION_SECONDS = 600.0
_opened = partial(sqlite3.connect, timeout=30.0)  # seconds, where the database is locked
T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, add_completion=False)
keys = typer.Typer(no_args_is_help=True, add_completion=False)

Backup = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]
Seconds = Annotated[float, typer.Option("--seconds", min=1, max=86_400, help="How long it may take, waiting included.")]


@app.command()
def backup(file: Backup, config: Config = None) -> None:
    """Copy the store to a file, also while the product runs; what was committed when the copy ends is in it."""
    source = _existing(_sqlite_file(_url(config)))
    if file.exists():
        raise InvalidRequest(f"{file} exists: name another file, or move it away")
    with _copied(source, file) as copy:
        copy.execute("PRAGMA journal_mode = DELETE")  # a backup is one file
    write(f"{file} is written. {_held(_survey(file))}", err=True)


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
            raise InvalidRequest(f"{target} is in use by {living} of the product's processes: stop the product first")
        with closing(_opened(target)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all is in the one file that is kept
        kept = target.with_name(f"{target.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
        target.replace(kept)
        for suffix in ("-wal", "-shm"):
            Path(f"{target}{suffix}").unlink(missing_ok=True)
    with _copied(file, target):
        pass
    write(f"{target} is restored. {_held(found)}", err=True)
    if kept is not None:
        write(f"The store of before is {kept}", err=True)


@app.command()
def migrate(seconds: Seconds = MIGRATION_SECONDS, config: Config = None) -> None:
    """Bring the tables of the store up to date, also while agents of the version before use it; once for all replicas.

    Several at a time wait for one another. Exit code 1: the database does not answer, or its tables are in use for too
    long; 2: this version cannot use the store.
    """

    async def migrated(database: Database) -> tuple[str, str | None]:
        return database.place, await schema.migrate(database, seconds=seconds)

    place, before = _on_database(_url(config), migrated, seconds)
    if before is None:
        write(f"{place}: its tables are created, version {HEAD}")
    elif before < HEAD:
        write(f"{place}: its tables are brought up to date, from version {before} to {HEAD}")
    else:
        newer = f"; they are newer than this version ({HEAD}), which works with them" if before > HEAD else ""
        write(f"{place}: its tables are up to date, version {before}{newer}")


@app.command()
def check(config: Config = None) -> None:
    """Read the whole store and print what it holds; exit code 1 where it is damaged."""

    async def place_and_contents(database: Database) -> tuple[str, Survey]:
        return database.place, await database.read(survey)

    url = _url(config)
    if not url.startswith("sqlite"):
        place, found = _on_database(url, place_and_contents)
        write(f"{place}: {_held(found)}. The server checks its own files.")
        return
    source = _existing(_sqlite_file(url))
    if problems := _problems(source):
        write(f"{source} is damaged: {'; '.join(problems)}\nRestore a backup: dial-agent store restore FILE")
        raise typer.Exit(Exit.FAILED)
    write(f"{source} is sound. {_held(_survey(source))}")


def _url(config: Path | None) -> str:
    return str(read_settings(config, foreign=False).store_options["url"])


def _sqlite_file(url: str) -> Path:
    if not url.startswith("sqlite"):
        raise InvalidRequest("The store is in PostgreSQL: use the server's own pg_dump and pg_restore")
    return Path(make_url(url).database or "")


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise InvalidRequest(f"There is no file {file}")
    return file


@contextmanager
def _copied(source: Path, target: Path) -> Generator[sqlite3.Connection]:
    # Put into its place at once, so that a copy that is interrupted changes nothing there.
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.touch(mode=0o600)  # it holds conversations
        with (
            closing(_opened(source)) as store,
            closing(sqlite3.connect(partial)) as copy,
        ):
            store.backup(copy)
            yield copy
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{target} could not be written: {error}") from error
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


def _survey(file: Path) -> Survey:
    engine = create_engine(f"sqlite:///{file}")
    try:
        with engine.connect() as connection:
            return survey(connection)
    finally:
        engine.dispose()


def _on_database(url: str, work: Callable[[Database], Awaitable[T]], seconds: float | None = None) -> T:
    async def run() -> T:
        database = open_database(url, PATIENCE, seconds or LONGEST_SECONDS)
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


async def _running(database: Database) -> int:
    found = await database.read(survey)
    if found.version is not None and found.version < FIRST:
        raise InvalidRequest(found.refusal)
    return len(await database.read(alive)) if found.version is not None else 0


def _held(found: Survey) -> str:
    size = f"{found.size / 2**20:,.1f} MiB"
    if found.version is None:
        return f"No tables yet, {size}"
    if found.older or found.refusal:
        return f"Tables of version {found.version}, {size}"
    return f"Sessions: {found.sessions:,}, traces: {found.traces:,}, {size}"


@keys.command()
def create(
    owner: Annotated[str, typer.Argument(help="Owner of the key's sessions, traces and files.")],
    label: Annotated[str, typer.Option(help="A note about what the key is for.")] = "",
    operator: Annotated[bool, typer.Option("--operator", help="Let the key read all owners' traces.")] = False,
    config: Config = None,
) -> None:
    """Create a key and print its secret, which is shown only once."""
    key, secret = on_store(
        read_settings(config, foreign=False), lambda store: store.keys.create(owner, label, operator=operator)
    )
    write(f"{key.key_id} belongs to {owner}. The secret is shown only once:", err=True)
    write(secret)


@keys.command("list")
def list_keys(config: Config = None) -> None:
    """List all keys, without their secrets."""
    rows: list[tuple[str, ...]] = []
    for key in on_store(read_settings(config, foreign=False), lambda store: store.keys.list()):
        state = f"revoked {iso(key.revoked_at)}" if key.revoked_at is not None else "valid"
        rows.append((key.key_id, key.owner, "operator" * key.operator, iso(key.created_at), state, key.label))
    write(columns(("KEY", "OWNER", "ROLE", "CREATED", "STATE", "LABEL"), rows))


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `list` shows it.")], config: Config = None
) -> None:
    """Revoke a key permanently."""
    on_store(read_settings(config, foreign=False), lambda store: store.keys.revoke(key_id))
    write(f"{key_id} is revoked", err=True)
