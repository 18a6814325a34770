"""`dial-agent store`: a backup of a running store, its restoration, and what is refused."""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from task.store.store import Store
from task.store.tables import HEAD
from tests.support.stores import OWNER, opened
from tests.support.up import dial_agent

pytestmark = pytest.mark.system


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.db"


@asynccontextmanager
async def in_use(database: Path) -> AsyncGenerator[Store]:
    """The store with a conversation of its own, while another process, this one, has it open."""
    database.parent.mkdir(exist_ok=True)
    async with opened(f"sqlite:///{database}", chores=False) as store:
        await store.sessions.start(OWNER, "What is in the cellar?")
        yield store


async def sessions(database: Path) -> int:
    async with opened(f"sqlite:///{database}", chores=False) as store:
        return len((await store.sessions.list(OWNER)).items)


async def run(home: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    finished = await dial_agent(home, "store", *arguments, AGENT_DATA_DIR=str(home / "data"), **environ)
    return finished.code, finished.out + finished.err


async def test_a_backup_of_a_store_in_use_brings_the_conversations_back(tmp_path: Path, database: Path) -> None:
    backup = tmp_path / "monday.db"
    async with in_use(database):
        code, said = await run(tmp_path, "backup", str(backup))
    assert (code, f"{backup} is written. Sessions: 1, traces: 0" in said) == (0, True), said
    assert backup.stat().st_mode & 0o077 == 0
    async with in_use(database):
        pass
    assert await sessions(database) == 2
    code, said = await run(tmp_path, "restore", str(backup))
    assert code == 0, said
    [kept] = [path for path in database.parent.iterdir() if ".before-" in path.name]
    assert str(kept) in said
    assert (await sessions(database), await sessions(kept)) == (1, 2)
    code, said = await run(tmp_path, "check")
    assert (code, f"{database} is sound. Sessions: 1" in said) == (0, True), said


@pytest.mark.fault("backup: a store that is in use when a backup is restored")
async def test_a_store_in_use_is_not_replaced(tmp_path: Path, database: Path) -> None:
    backup = tmp_path / "monday.db"
    async with in_use(database):
        await run(tmp_path, "backup", str(backup))
        code, said = await run(tmp_path, "restore", str(backup))
    assert (code, "stop the product first" in said) == (2, True), said
    assert await sessions(database) == 1


@pytest.mark.fault("backup: a file that is no database, no store, of a newer version, or missing")
async def test_what_is_no_backup_is_not_restored(tmp_path: Path, database: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear store, " * 1000)
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE other (x)").connection.close()
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("CREATE TABLE alembic_version (version_num TEXT)")
    newer.execute("INSERT INTO alembic_version VALUES (?)", (f"{int(HEAD) + 2:04}",))
    newer.commit()
    newer.close()
    for name, reason in {
        "letter.db": "not a database", "empty.db": "no store of this product", "newer.db": "a newer version",
        "missing.db": "There is no file",
    }.items():  # fmt: skip
        code, said = await run(tmp_path, "restore", str(tmp_path / name))
        assert (code, reason in said) == (2, True), said
    assert not database.exists()


@pytest.mark.fault("backup: a backup under the name of another file, or without a store")
async def test_a_backup_overwrites_nothing_and_needs_a_store(tmp_path: Path, database: Path) -> None:
    taken = tmp_path / "taken.db"
    code, said = await run(tmp_path, "backup", str(taken))
    assert (code, "There is no file" in said) == (2, True), said
    taken.write_text("precious")
    async with in_use(database):
        code, said = await run(tmp_path, "backup", str(taken))
    assert (code, taken.read_text()) == (2, "precious"), said


@pytest.mark.fault("backup: a damaged store")
async def test_damage_is_found(tmp_path: Path, database: Path) -> None:
    async with in_use(database):
        pass
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    code, said = await run(tmp_path, "check")
    assert (code, f"{database} is damaged" in said) == (1, True), said


@pytest.mark.fault("backup: a backup of a store in PostgreSQL")
async def test_for_postgresql_the_servers_own_programs_are_named(tmp_path: Path) -> None:
    url = "postgresql://ann:secret@127.0.0.1:1/agent"
    code, said = await run(tmp_path, "backup", str(tmp_path / "x.db"), AGENT_STORE__URL=url)
    assert (code, "pg_dump" in said, "secret" in said) == (2, True, False), said
