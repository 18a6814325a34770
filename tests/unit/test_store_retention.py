"""Retention removes what is old or too many, with all that belongs to it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection

from task.conversation.messages import assistant, user
from task.errors import NotFound
from task.llm.scripted import says, wants
from task.store.store import DAY, Retention, Store
from tests.support.stores import OWNER, StoreClock, opened, sqlite_url
from tests.support.traced import traced


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
    async with opened(sqlite_url(tmp_path), clock, retention=Retention(days=30)) as store:
        old = await answered_session(store)
        await traced(store, says("without a session"))
        clock.now += 20 * DAY
        young = await answered_session(store)
        clock.now += 11 * DAY
        assert await store.forget() > 0
        assert await rows(store) == {"sessions": 1, "messages": 2, "runs": 1, "events": 1, "traces": 1, "calls": 1}
        assert (await store.sessions.get(OWNER, young)).session_id == young
        with pytest.raises(NotFound):
            await store.sessions.get(OWNER, old)
        assert await store.forget() == 0


async def test_an_old_session_that_is_still_used_stays(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock, retention=Retention(days=30)) as store:
        used = await answered_session(store)
        clock.now += 29 * DAY
        session = await store.sessions.get(OWNER, used)
        await store.sessions.append(OWNER, used, [user("still there?")], session.version)
        clock.now += 2 * DAY
        await store.forget()
        assert len((await store.sessions.get(OWNER, used)).messages) == 3


async def test_only_the_newest_so_many_stay(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock, retention=Retention(None, sessions=2, traces=3)) as store:
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


async def test_a_run_in_progress_is_never_removed(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock, retention=Retention(days=1), chores=False) as store:
        run = await store.runs.start(OWNER)
        clock.now += 2 * DAY
        await store.forget()
        await store.runs.finish(run, "finished")
        assert (await store.runs.get(OWNER, run.run_id)).status == "finished"
