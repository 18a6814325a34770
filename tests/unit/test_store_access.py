"""Approvals, grants, keys, rate limits and retention, and the schema they are stored in."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine

from task.conversation.inputs import Answer
from task.conversation.messages import assistant, user
from task.errors import Conflict, NotFound
from task.llm.scripted import says, wants
from task.store import processes
from task.store.database import open_database
from task.store.records import Approval, iso, new_id
from task.store.schema import migrate
from task.store.store import DAY, Store
from task.store.tables import HEAD, metadata
from tests.support.stores import OWNER, StoreClock, opened, sqlite_url
from tests.support.traced import traced

CALL = ("call_1", "shell_run", {"cmd": "rm x"}, "d1")
CARD = {"intent": "tidy"}


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture
async def store(tmp_path: Path, clock: StoreClock) -> AsyncGenerator[Store]:
    async with opened(sqlite_url(tmp_path), clock) as store:
        yield store


async def asked(store: Store, session_id: str | None = None, run_id: str | None = None) -> Approval:
    now = store.approvals.clock()
    question = Approval(new_id("appr", 16), OWNER, *CALL, now, now + 60, CARD, session_id, run_id)
    return await store.approvals.ask(question)


async def test_grants_count_in_their_session_until_they_end_or_are_revoked(store: Store, clock: StoreClock) -> None:
    here = await store.grants.add(OWNER, {"scope": "tool", "tool": "look"}, session_id="sess_1", seconds=60)
    clock.now += 1
    everywhere = await store.grants.add(OWNER, {"scope": "session", "tool": ""})
    assert await store.grants.list(OWNER, "sess_1") == (here, everywhere)
    assert await store.grants.list(OWNER, "sess_2") == (everywhere,)
    clock.now += 61
    assert await store.grants.list(OWNER, "sess_1") == (everywhere,)
    with pytest.raises(NotFound):
        await store.grants.revoke("bob", everywhere.grant_id)
    await store.grants.revoke(OWNER, everywhere.grant_id)
    assert await store.grants.list(OWNER) == ()


@pytest.mark.fault("store: a wrong or revoked key")
async def test_a_wrong_or_revoked_key_opens_nothing(store: Store, tmp_path: Path) -> None:
    key, secret = await store.keys.create(OWNER)
    kept, other_secret = await store.keys.create(OWNER)
    assert await store.keys.verify(secret) == key
    assert await store.keys.verify(other_secret) == kept
    for wrong in ("", secret[:-1], secret.upper(), f"{secret} ", key.key_id, "schlüssel\ud800"):
        assert await store.keys.verify(wrong) is None
    await store.keys.revoke(key.key_id)
    assert await store.keys.verify(secret) is None
    with pytest.raises(NotFound):
        await store.keys.revoke(key.key_id)
    async with opened(sqlite_url(tmp_path)) as other:
        await other.keys.revoke(kept.key_id)
    assert await store.keys.verify(other_secret) is None


async def test_processes_that_share_a_file_take_from_one_bucket_and_do_a_chore_once(tmp_path: Path) -> None:
    url, clock = sqlite_url(tmp_path), StoreClock()
    async with opened(url, clock=clock, shared=True) as one, opened(url, clock=clock, shared=True) as other:
        taken = [await store.limits.take("key_1", 4) for store in (one, other) * 3]
        assert taken == [None, None, None, None, pytest.approx(15.0), pytest.approx(15.0)]
        clock.now += 15
        assert await other.limits.take("key_1", 4) is None
        assert [await store.processes.first_to("tidy", 60) for store in (one, other)] == [True, False]
        clock.now += 60
        assert [await store.processes.first_to("tidy", 60) for store in (other, one, other)] == [True, False, False]


async def test_a_migrated_database_has_the_tables_the_code_works_with(tmp_path: Path) -> None:
    assert ScriptDirectory(str(Path(str(processes.__file__)).with_name("migrations"))).get_current_head() == HEAD
    database = open_database(sqlite_url(tmp_path))
    await migrate(database)
    await migrate(database)  # a second time changes nothing
    await database.close()
    engine = create_engine(sqlite_url(tmp_path))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_bucket_of_requests_empties_and_fills_again(tmp_path: Path, clock: StoreClock, shared: bool) -> None:
    async with opened(sqlite_url(tmp_path), clock, shared=shared) as store:
        taken = [await store.limits.take("key_1", 60) for _ in range(60)]
        assert set(taken) == {None}
        assert await store.limits.take("key_1", 60) == pytest.approx(1.0)
        assert await store.limits.take("key_2", 60) is None
        clock.now += 1
        assert await store.limits.take("key_1", 60) is None
        assert await store.limits.take("key_1", 60) is not None
        clock.now += 3600
        assert [await store.limits.take("key_1", 60) for _ in range(61)].count(None) == 60


async def answered_session(store: Store) -> str:
    session = await store.sessions.start(OWNER)
    run = await store.runs.start(OWNER, session=session, messages=[user("hi")])
    store.runs.append_event(run.run_id, "text", text="hello")
    await traced(store, wants("calculator", expression="1+1"), says("2"), session_id=session.session_id)
    await store.runs.finish(run, "finished", added=[assistant("hello")])
    return session.session_id


async def rows(store: Store) -> dict[str, int]:
    tables = ("sessions", "messages", "runs", "events", "traces", "calls")

    def work(connection: Connection) -> dict[str, int]:
        return {table: connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() or 0 for table in tables}

    return await store.database.read(work)


async def test_what_is_older_than_its_days_is_removed_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock, days=30, chores=False) as store:
        old, used = await answered_session(store), await answered_session(store)
        running = await store.runs.start(OWNER)
        await traced(store, says("without a session"))
        clock.now += 20 * DAY
        session = await store.sessions.get(OWNER, used)
        await store.sessions.append(OWNER, used, [user("still there?")], session.version)
        clock.now += 11 * DAY
        assert await store.forget() > 0
        assert await rows(store) == {"sessions": 1, "messages": 3, "runs": 1, "events": 0, "traces": 0, "calls": 0}
        assert len((await store.sessions.get(OWNER, used)).messages) == 3
        with pytest.raises(NotFound):
            await store.sessions.get(OWNER, old)
        assert await store.forget() == 0
        await store.runs.finish(running, "finished")  # a run in progress is never removed
        assert (await store.runs.get(OWNER, running.run_id)).status == "finished"


async def test_only_the_newest_so_many_stay(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock, days=None, sessions=2, traces=3) as store:
        sessions: list[str] = []
        for number in range(4):
            clock.now += number
            sessions.append((await store.sessions.start(OWNER)).session_id)
        for _ in range(5):
            await traced(store, says("hi"))  # all at one moment
        await store.forget()
        kept = [session.session_id for session in (await store.sessions.list(OWNER)).items]
        assert kept == sessions[:1:-1]
        assert (await rows(store))["traces"] == 3


async def test_a_new_file_that_several_open_at_once_is_busy_for_none_of_them(tmp_path: Path) -> None:
    def mode(connection: Connection) -> str:
        return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())

    for number in range(40):
        url = f"sqlite:///{tmp_path / str(number)}.db"
        databases = [open_database(url, patience=30) for _ in range(6)]
        modes = await asyncio.gather(*(database.write(mode) for database in databases))
        assert modes == ["wal"] * 6
        await asyncio.gather(*(database.close() for database in databases))


def test_a_killed_process_that_nobody_has_awaited_is_dead() -> None:
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place = processes._place(running.pid)  # pyright: ignore[reportPrivateUsage]
    assert not processes._known_dead(place)  # pyright: ignore[reportPrivateUsage]
    running.kill()
    os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
    assert processes._known_dead(place)  # pyright: ignore[reportPrivateUsage]
    running.communicate()


@pytest.mark.fault("store: another owner's approval")
async def test_a_question_waits_until_another_process_answers_it_and_the_first_answer_counts(
    store: Store, tmp_path: Path
) -> None:
    runs = [(await store.runs.start(OWNER)).run_id for _ in range(2)]
    question = await asked(store, session_id="sess_1", run_id=runs[0])
    two = await asked(store, session_id="sess_2", run_id=runs[1])
    assert iso(question.expires_at) == "2027-01-15T08:01:00.000+00:00"
    assert await store.approvals.list(OWNER, run_id=runs[1]) == (two,)
    async with opened(sqlite_url(tmp_path), store.processes.clock) as other:
        approvals, approval_id = other.approvals, question.approval_id
        assert await approvals.list("bob") == ()
        for work in (approvals.get("bob", approval_id), approvals.answer("bob", approval_id, Answer(True))):
            with pytest.raises(NotFound, match="there is no approval"):
                await work
        assert await approvals.list(OWNER, session_id="sess_1") == (question,)
        answers = [Answer(True, f"go on {n}", {"cmd": "rm y"}, grant="tool") for n in range(10)]
        answering = (approvals.answer(OWNER, approval_id, answer) for answer in answers)
        results = await asyncio.gather(*answering, return_exceptions=True)
        [first] = [result for result in results if isinstance(result, Approval)]
        assert sum(isinstance(result, Conflict) for result in results) == 9
        assert await approvals.list(OWNER) == (two,)
        answered = await store.approvals.get(OWNER, approval_id)
        assert (answered.status, answered.answer in answers, answered.answer) == ("allowed", True, first.answer)
        assert len(await approvals.list(OWNER, waiting=False)) == 2


async def test_no_answer_in_time_is_a_no(store: Store, clock: StoreClock) -> None:
    question = (await asked(store)).approval_id
    clock.now += 61
    assert (await store.approvals.get(OWNER, question)).status == "expired"
    assert await store.approvals.list(OWNER) == ()
    assert [item.status for item in await store.approvals.list(OWNER, waiting=False)] == ["expired"]
    with pytest.raises(Conflict, match="is expired already"):
        await store.approvals.answer(OWNER, question, Answer(True))


async def test_stores_that_one_process_makes_at_the_same_time_each_get_their_own_tables(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        opening = [opened(f"sqlite:///{tmp_path}/{number}.db") for number in range(6)]
        stores = await asyncio.gather(*map(stack.enter_async_context, opening))
        for store in stores:
            await store.sessions.start(OWNER)
        assert [len((await store.sessions.list(OWNER)).items) for store in stores] == [1] * 6
