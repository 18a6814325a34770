"""Faults of a store: locked, full, damaged, of a newer version, its process killed in the middle."""

import asyncio
import sqlite3
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from task.conversation.messages import assistant, user
from task.errors import SettingsError, StoreUnavailable, StoreVersionError
from task.runs.traces import TraceRecorder, TraceStart
from task.store.access import StoreOptions
from task.store.store import Store, open_store
from tests.support.stores import OWNER, opened, sqlite_url
from tests.support.up import dial_agent

ROOT = Path(__file__).parents[2]
DYING = ROOT / "tests" / "support" / "dying_run.py"


async def limit_pages(store: Store, pages: int | None = None) -> None:
    """Let the database grow to so many pages; without a number not at all."""

    def work(connection: Connection) -> None:
        now = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages or now}")

    await store.database.write(work)


@pytest.mark.fault("store: database locked")
async def test_while_another_process_holds_the_database_reads_work_and_writes_are_refused(tmp_path: Path) -> None:
    async with opened(sqlite_url(tmp_path), patience=0.1) as store:
        session = await store.sessions.start(OWNER)
        holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(StoreUnavailable, match="The store is busy"):
                await store.sessions.start(OWNER)
            observer = TraceRecorder(store.traces, TraceStart(OWNER, "http", "m"))
            observer.end("finished")
            observer.record()
            with pytest.raises(StoreUnavailable, match="The store is busy"):
                await store.writer.flush()
            assert await store.sessions.get(OWNER, session.session_id) == session
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        written = False
        async with asyncio.timeout(20):
            while not written:  # an attempt from before may still be under way, and fail
                with suppress(StoreUnavailable):
                    await store.writer.flush()
                    written = True
        assert (await store.traces.get(OWNER, observer.trace_id)).status == "finished"


@pytest.mark.fault("store: kill -9 in the middle of a run")
async def test_a_run_killed_in_the_middle_can_be_read_and_is_marked_interrupted(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(DYING), url, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    async with asyncio.timeout(30):
        run_id, trace_id, session_id = (await child.stdout.readline()).decode().split()
        child.kill()
        await child.wait()
    async with opened(url) as store:
        run = await store.runs.get(OWNER, run_id)
        assert (run.status, run.error) == ("interrupted", "the process stopped during the answer")
        *events, last = [event async for event in store.runs.events_after(OWNER, run_id)]
        assert "".join(event.data["text"] for event in events) == "I was about to"
        assert (last.type, last.data["status"], last.data["trace_id"]) == ("finished", "interrupted", trace_id)
        session = await store.sessions.get(OWNER, session_id)
        assert session.messages == (user("What is it?"), replace(assistant("I was about to"), unsourced=True))
        trace = await store.traces.get(OWNER, trace_id)
        assert (trace.status, [turn.role for turn in trace.turns]) == ("interrupted", ["user", "assistant"])
        again = await store.runs.start(OWNER, session=session, messages=[user("Go on.")])
        await store.runs.finish(again, "finished", added=[assistant("say this.")])


UNRELEASED = ("0001", "0002", "0003", "0004", "0005", "0006", "0008", "0009", "0010")
OLD_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
CREATE TABLE sessions (id VARCHAR(40) PRIMARY KEY, owner VARCHAR(200) NOT NULL, title TEXT NOT NULL);
CREATE TABLE processes (id VARCHAR(40) PRIMARY KEY, place TEXT NOT NULL, seen_at DOUBLE NOT NULL);
INSERT INTO sessions VALUES ('sess_1', 'ann', 'What is in the cellar?');
"""


def store_before_the_first_release(folder: Path, version: str) -> bytes:
    (folder / "store.db").unlink(missing_ok=True)
    with sqlite3.connect(folder / "store.db") as connection:
        connection.executescript(OLD_SCHEMA)
        connection.execute("INSERT INTO alembic_version VALUES (?)", (version,))
    connection.close()
    return (folder / "store.db").read_bytes()


@pytest.mark.fault("store: a store from before the first release")
@pytest.mark.parametrize("migrate", [True, False])
async def test_a_store_from_before_the_first_release_is_neither_changed_nor_read(tmp_path: Path, migrate: bool) -> None:
    before = b""
    for version in UNRELEASED:
        before = store_before_the_first_release(tmp_path, version)
        with pytest.raises(StoreVersionError, match=f"version {version}.* back it up, move it away, and start again"):
            await open_store(StoreOptions(sqlite_url(tmp_path), migrate=migrate))
        assert (tmp_path / "store.db").read_bytes() == before
    command = ("serve",) if migrate else ("store", "migrate")
    ended = await dial_agent(tmp_path, *command, AGENT_STORE__URL=sqlite_url(tmp_path), AGENT_PORT="0")
    said = [line for line in ended.err.splitlines() if line.startswith("The store was made before")]
    assert (ended.code, len(said), "Traceback" in ended.err) == (2, 1, False), ended.err
    assert (tmp_path / "store.db").read_bytes() == before


@pytest.mark.fault("store: a file that is not a database")
async def test_a_file_that_is_not_a_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("These are minutes of a meeting.\n" * 200, encoding="utf-8")
    with pytest.raises(StoreUnavailable, match="is not a database"):
        await open_store(StoreOptions(sqlite_url(tmp_path)))
    assert (tmp_path / "store.db").read_text(encoding="utf-8").startswith("These are minutes")


@pytest.mark.fault("store: an address of no database")
@pytest.mark.parametrize(
    "url",
    [
        "mysql://h/d",
        "nothing",
        "sqlite://",
        "sqlite:///",
        "sqlite:////dev/null/store.db",
        "postgresql://u:SECRET@h:x/d",
        "postgresql://u:SECRET@h/d?x=SECRET",
    ],
)
async def test_an_address_that_names_no_database_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="AGENT_STORE__URL") as caught:
        await open_store(StoreOptions(url))
    assert "SECRET" not in str(caught.value)


@pytest.mark.fault("store: disk full")
async def test_a_full_disk_refuses_new_runs_loses_none_of_the_old_and_an_answer_is_stored_once_there_is_room(
    tmp_path: Path,
) -> None:
    async with opened(sqlite_url(tmp_path)) as store:
        session = await store.sessions.start(OWNER)
        run = await store.runs.start(OWNER, session=session, messages=[user("hi")])
        await limit_pages(store)
        answer = assistant("y" * 100_000)
        with pytest.raises(StoreUnavailable, match="The store is full"):
            await store.runs.finish(run, "finished", added=[answer])
        await limit_pages(store, 1_000_000)
        async with asyncio.timeout(20):
            await store.writer.flush()
        kept = await store.sessions.get(OWNER, session.session_id)
        assert kept.messages == (user("hi"), answer)
        await limit_pages(store)
        with pytest.raises(StoreUnavailable, match="The store is full"):
            await store.runs.start(OWNER, session=kept, messages=[user("x" * 100_000)])
        assert await store.sessions.get(OWNER, session.session_id) == kept
        await limit_pages(store, 1_000_000)
        await store.runs.finish(await store.runs.start(OWNER, session=kept), "finished")


@pytest.mark.fault("store: a store of a newer version")
@pytest.mark.fault("store: several processes that start at once")
async def test_processes_that_start_at_once_make_one_schema_and_one_of_a_newer_version_is_left_alone(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(30):
        stores = await asyncio.gather(*(open_store(StoreOptions(sqlite_url(tmp_path))) for _ in range(4)))
    session = await stores[0].sessions.start(OWNER)
    for store in stores:
        assert await store.sessions.get(OWNER, session.session_id) == session
        await store.close()
    assert (tmp_path / "store.db").stat().st_mode & 0o077 == 0  # only its owner may read it
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreUnavailable, match=r"newer version \(9999\)"):
        await open_store(StoreOptions(sqlite_url(tmp_path)))
