"""Runs and their events: live, after a break, and from another process."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from task.conversation.messages import assistant, user
from task.errors import Conflict, KeyReused, NotFound
from task.runs.request import RunOptions, state_of
from task.runs.traces import TraceRecorder, TraceStart
from task.store.database import SqliteDatabase
from task.store.keys import REQUEST_KEY_SECONDS
from task.store.records import AlreadyStarted, Approval, RequestKey, Run, SessionFilter
from task.store.records import Event as RunEvent
from task.store.store import Store
from task.store.writer import AT_ONCE
from tests.support.stores import OWNER, StoreClock, opened, seen_for, sqlite_url
from tests.support.waiting import until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with opened(sqlite_url(tmp_path)) as store:
        yield store


async def texts_of(events: AsyncGenerator[RunEvent]) -> list[str]:
    async with asyncio.timeout(20):
        return [f"{event.number} {event.data.get('text', event.type)}" async for event in events]


async def test_a_client_that_reconnects_gets_the_missed_events_and_then_the_rest(store: Store) -> None:
    run = await store.runs.start(OWNER)
    for text in ("one", "two"):
        store.runs.append_event(run.run_id, "text", text=text)
    listening = asyncio.create_task(texts_of(store.runs.events_after(OWNER, run.run_id, 1)))
    late = asyncio.create_task(texts_of(store.runs.events_after(OWNER, run.run_id)))
    await asyncio.sleep(0)
    store.runs.append_event(run.run_id, "text", text="three")
    store.runs.append_event(run.run_id, "finished")
    await store.runs.finish(run, "finished")
    assert await listening == ["2 two", "3 three", "4 finished"]
    assert await late == ["1 one", "2 two", "3 three", "4 finished"]
    assert await texts_of(store.runs.events_after(OWNER, run.run_id, 2)) == ["3 three", "4 finished"]


@pytest.mark.fault("store: a start that is not known to be on disk")
async def test_a_start_that_its_client_left_leaves_nothing_and_the_same_request_starts_again(store: Store) -> None:
    session, key = await store.sessions.start(OWNER), RequestKey("a-key", "a body")
    writing, may_continue = Event(), Event()

    def wait(_: Connection) -> None:
        writing.set()
        assert may_continue.wait(10)

    assert isinstance(store.database, SqliteDatabase)
    event.listen(store.database.writer, "begin", wait, once=True)
    beginning = asyncio.create_task(store.runs.start(OWNER, session=session, messages=[user("?")], key=key))
    assert await asyncio.to_thread(writing.wait, 10)
    beginning.cancel()
    await asyncio.wait({beginning})
    may_continue.set()
    await store.writer.flush()
    session = await store.sessions.get(OWNER, session.session_id)
    assert session.messages == ()
    again = await store.runs.start(OWNER, session=session, messages=[user("?")], key=key)
    assert [run.run_id for run in (await store.runs.list(OWNER)).items] == [again.run_id]
    await store.runs.finish(again, "finished")


async def test_a_run_whose_session_another_process_removes_is_stopped_and_leaves_nothing(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = await store.sessions.start(OWNER)
    run = await store.runs.start(OWNER, session=session, messages=[user("hi")])
    observer = TraceRecorder(
        store.traces, TraceStart(OWNER, "v1", "m", session_id=session.session_id, run_id=run.run_id)
    )
    async with opened(sqlite_url(tmp_path)) as other, asyncio.timeout(20):
        await other.sessions.delete(OWNER, session.session_id)
        await store.runs.cancel_requested(run.run_id)
        store.runs.append_event(run.run_id, "text", text="a secret")
        observer.record()
        await store.runs.finish(run, "cancelled", added=[assistant("a secret")])
        assert (await other.traces.list(OWNER)).items == ()
    assert not caplog.records


@pytest.mark.fault("store: two writers on one session")
async def test_a_session_is_answered_by_one_run_at_a_time(store: Store) -> None:
    session = await store.sessions.start(OWNER)
    starting = [store.runs.start(OWNER, session=session, messages=[user("hi")], experiment="b") for _ in range(5)]
    results = await asyncio.gather(*starting, return_exceptions=True)
    [run] = [result for result in results if not isinstance(result, BaseException)]
    assert all(isinstance(result, Conflict) for result in results if result is not run)
    now = await store.sessions.get(OWNER, session.session_id)
    assert now.messages == (user("hi"),)
    with pytest.raises(Conflict, match="being answered already"):
        await store.runs.start(OWNER, session=now)
    await store.runs.finish(run, "finished", added=[assistant("yes")])
    now = await store.sessions.get(OWNER, session.session_id)
    assert now.messages == (user("hi"), assistant("yes"))
    again = await store.runs.start(OWNER, session=now, messages=[user("more")])
    await store.runs.finish(again, "failed")
    listed = (await store.runs.list(OWNER, session.session_id)).items
    assert [(item.status, item.experiment) for item in listed] == [("failed", None), ("finished", "b")]


@pytest.mark.fault("store: another owner's run")
async def test_another_owners_run_is_not_there(store: Store) -> None:
    run = await store.runs.start(OWNER)
    for work in (
        store.runs.get("bob", run.run_id),
        store.runs.request_cancel("bob", run.run_id),
        texts_of(store.runs.events_after("bob", run.run_id)),
    ):
        with pytest.raises(NotFound, match="there is no run"):
            await work
    await store.runs.finish(run, "finished")


async def test_numbers_that_json_has_no_room_for_leave_an_event_readable_beside_half_a_character(store: Store) -> None:
    run = await store.runs.start(OWNER)
    store.runs.append_event(run.run_id, "text", text="half \ud800", large=2**70, none=float("nan"))
    await store.runs.finish(run, "finished")
    [event] = await store.runs.recorded(run.run_id)
    assert event.data == {"text": "half ?", "large": str(2**70), "none": None}


async def test_the_messages_of_many_runs_are_read_together_and_only_the_owners(store: Store) -> None:
    runs = [await store.runs.start(owner) for owner in (OWNER, OWNER, "bob")]
    for number, run in enumerate(runs):
        await store.runs.finish(run, "suspended", added=[assistant(f"step {number}")])
    ids = [*(f"run_{number:016x}" for number in range(1_200)), *(run.run_id for run in runs)]
    found = await store.runs.added(OWNER, ids)
    assert found == {runs[0].run_id: (assistant("step 0"),), runs[1].run_id: (assistant("step 1"),)}


@pytest.mark.fault("approval: results from outside that the next request does not bring along")
async def test_a_process_that_is_not_seen_for_long_leaves_interrupted_runs(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock) as store, opened(sqlite_url(tmp_path), clock) as other:
        session = await store.sessions.start(OWNER)
        run = await store.runs.start(OWNER, session=session, messages=[user("hi")], trace_id="trace_1")
        request = asdict(RunOptions("runs", "m"))
        store.runs.append_event(run.run_id, "started", messages=0, request=request)
        store.runs.append_event(run.run_id, "text", text="I was just")
        async with asyncio.timeout(20), aclosing(other.runs.events_after(OWNER, run.run_id)) as events:
            await anext(events)
        assert await other.processes.interrupt_orphans() == 0
        await seen_for(other, clock, 31)
        assert await other.processes.interrupt_orphans() == 1
        assert await texts_of(other.runs.events_after(OWNER, run.run_id)) == ["1 started", "2 I was just", "3 finished"]
        stored = await other.runs.get(OWNER, run.run_id)
        state = state_of(stored, [event async for event in other.runs.events_after(OWNER, run.run_id)])
        assert state is not None
        assert stored.status == "interrupted"
        assert (state.run.status, state.written, state.failed) == ("interrupted", "I was just", True)
        kept = (await other.sessions.get(OWNER, session.session_id)).messages
        assert kept == (user("hi"), replace(assistant("I was just"), unsourced=True))  # its results are lost
        await store.runs.finish(run, "finished", added=[assistant("I was just thinking.")])
        assert (await other.sessions.get(OWNER, session.session_id)).messages == kept


async def test_the_question_of_a_run_that_died_is_found_by_its_words(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock) as store, opened(sqlite_url(tmp_path), clock) as other:
        session = await store.sessions.start(OWNER)
        await store.runs.start(OWNER, session=session, messages=[user("where are the keys")])
        await seen_for(other, clock, 31)
        session = await other.sessions.get(OWNER, session.session_id)
        await other.runs.start(OWNER, session=session, messages=[user("again")])  # the dead run is noticed here
        page = await other.sessions.list(OWNER, which=SessionFilter("keys"))
        assert [item.session_id for item in page.items] == [session.session_id]


@pytest.mark.parametrize("messages", [2, 200])
async def test_a_turn_costs_as_many_statements_in_a_long_session_as_in_a_short_one(store: Store, messages: int) -> None:
    session = await store.sessions.start(OWNER)
    await store.sessions.append(OWNER, session.session_id, [user("hi")] * messages, session.version)
    counted = list[str]()
    assert isinstance(store.database, SqliteDatabase)
    for engine in (store.database.reader, store.database.writer):
        event.listen(engine, "before_cursor_execute", lambda *given: counted.append(given[2]))
    session = await store.sessions.get(OWNER, session.session_id, traces=False)
    run = await store.runs.start(OWNER, session=session, messages=[user("a new question")], most=4)
    await store.runs.finish(run, "finished", added=[assistant("an answer")])
    assert len(counted) == 12, counted  # two of them begin a transaction


@pytest.mark.fault("http api: an Idempotency-Key of another owner, or one that has expired")
async def test_a_key_stands_for_its_run_for_a_day_and_for_one_request_only(tmp_path: Path) -> None:
    clock, key, other = StoreClock(), RequestKey("a-key", "one body"), RequestKey("a-key", "another body")
    async with opened(sqlite_url(tmp_path), clock) as store:
        run = await store.runs.start(OWNER, key=key)
        with pytest.raises(AlreadyStarted) as again:
            await store.runs.start(OWNER, key=key)
        with pytest.raises(KeyReused):
            await store.runs.start(OWNER, key=other)  # two processes have prepared them at the same time
        with pytest.raises(KeyReused):
            await store.runs.claim(OWNER, other, run.run_id)
        theirs = await store.runs.started_by("bob", key)
        clock.now += REQUEST_KEY_SECONDS + 1
        expired = await store.runs.started_by(OWNER, other)
        fresh = await store.runs.start(OWNER, key=other)
    assert (again.value.run_id, theirs, expired) == (run.run_id, None, None)
    assert fresh.run_id != run.run_id


async def queued(store: Store) -> None:
    """Wait until the events of its runs are queued and on disk."""
    await until(lambda: store.writer.waiting)
    await store.writer.flush()


@pytest.fixture
async def taken_for_dead(tmp_path: Path) -> AsyncGenerator[tuple[Store, Store, Run]]:
    """A process that was frozen in an answer, another that has ended its run meanwhile, and the run."""
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock) as frozen, opened(sqlite_url(tmp_path), clock) as other:
        session = await frozen.sessions.start(OWNER)
        run = await frozen.runs.start(OWNER, session=session, messages=[user("hi")], trace_id="trace_1")
        frozen.runs.append_event(run.run_id, "started", messages=0, request=asdict(RunOptions("runs", "m")))
        frozen.runs.append_event(run.run_id, "text", text="I was just")
        await queued(frozen)
        start = TraceStart(OWNER, "runs", "m", run_id=run.run_id)
        frozen.traces.put(replace(TraceRecorder(None, start, "trace_1").trace(), started_at=clock()), stored=False)
        await frozen.writer.flush()
        await seen_for(other, clock, 31)
        assert await other.processes.interrupt_orphans() == 1
        yield frozen, other, run


@pytest.mark.fault("store: a process that wakes after others took it for dead")
@pytest.mark.fault("store: a client that was sent more events than were stored, or reads while the run is ended")
async def test_a_process_that_wakes_writes_nothing_into_a_run_that_another_has_ended(
    taken_for_dead: tuple[Store, Store, Run],
) -> None:
    frozen, other, run = taken_for_dead
    before = await texts_of(other.runs.events_after(OWNER, run.run_id))
    trace = await other.traces.get(OWNER, "trace_1")
    recorder = TraceRecorder(frozen.traces, TraceStart(OWNER, "runs", "m", run_id=run.run_id), "trace_1")
    for text in (" thinking", " of you"):
        frozen.runs.append_event(run.run_id, "text", text=text)
        await queued(frozen)
    recorder.end("finished")
    recorder.record()
    await frozen.runs.finish(run, "finished", added=[assistant("I was just thinking of you")])
    assert await texts_of(other.runs.events_after(OWNER, run.run_id)) == before
    for seen in (2, 3, 40):  # a client that was sent more than was stored still gets the end
        assert await texts_of(other.runs.events_after(OWNER, run.run_id, seen)) == before[-1:] == ["3 finished"]
    assert (trace.status, (await other.traces.list(OWNER)).items) == ("interrupted", (trace,))
    [*_, last] = (await other.sessions.get(OWNER, run.session_id or "")).messages
    assert last.text() == "I was just"


@pytest.mark.fault("store: a process that wakes after others took it for dead")
async def test_a_process_that_wakes_neither_calls_a_tool_nor_asks_a_person_for_such_a_run(
    taken_for_dead: tuple[Store, Store, Run],
) -> None:
    frozen, other, run = taken_for_dead
    stopping = asyncio.create_task(frozen.runs.cancel_requested(run.run_id))
    await frozen.runs.renew()
    with pytest.raises(Conflict, match="interrupted"):
        await frozen.runs.hold(run.run_id)
    with pytest.raises(Conflict, match="has ended"):
        await frozen.approvals.ask(Approval("appr_1", OWNER, "c", "t", {}, "d", 0, 60, run_id=run.run_id))
    await asyncio.wait_for(stopping, 20)
    assert await other.approvals.list(OWNER, waiting=False) == ()


@pytest.mark.fault("store: an outage in which no process could report")
async def test_after_an_outage_nobody_is_taken_for_dead_by_who_could_not_look(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock) as one, opened(sqlite_url(tmp_path), clock) as other:
        run = await one.runs.start(OWNER)
        await seen_for(other, clock, 31)
        await one.processes.beat()
        clock.now += 60  # of an outage: neither was seen
        for store in (other, one):
            await store.processes.beat()
            assert await other.processes.interrupt_orphans() == 0
        async with opened(sqlite_url(tmp_path), clock) as new:
            clock.now += 31
            assert await new.processes.interrupt_orphans() == 0
        assert (await other.runs.get(OWNER, run.run_id)).status == "running"


@pytest.mark.fault("store: a process that dies before its first event is stored")
@pytest.mark.fault("store: a client that was sent more events than were stored, or reads while the run is ended")
async def test_an_end_that_comes_while_a_client_reads_is_sent_once(tmp_path: Path) -> None:
    clock, reading, may_read = StoreClock(), Event(), Event()

    def wait(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM events" in statement and not reading.is_set():
            reading.set()
            assert may_read.wait(10)

    async with opened(sqlite_url(tmp_path), clock) as frozen, opened(sqlite_url(tmp_path), clock) as other:
        run = await frozen.runs.start(OWNER)
        await seen_for(other, clock, 31)
        async with opened(sqlite_url(tmp_path), clock) as reader:
            assert isinstance(reader.database, SqliteDatabase)
            event.listen(reader.database.reader, "before_cursor_execute", wait)
            listening = asyncio.create_task(texts_of(reader.runs.events_after(OWNER, run.run_id)))
            assert await asyncio.to_thread(reading.wait, 10)
            assert await other.processes.interrupt_orphans() == 1
            may_read.set()
            assert await listening == ["1 finished"]
        stored = await other.runs.get(OWNER, run.run_id)
        state = state_of(stored, [event async for event in other.runs.events_after(OWNER, run.run_id)])
    assert state is not None
    assert (state.run.status, state.written, state.failed) == ("interrupted", "", True)


@pytest.mark.fault("store: a process that dies between the last events of a run and its end")
async def test_the_last_events_are_stored_together_with_the_end_of_the_run_however_much_waits_before_them(
    tmp_path: Path,
) -> None:
    url, seen = sqlite_url(tmp_path), list[str]()

    def read(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE runs"):
            with closing(sqlite3.connect(f"file:{url.removeprefix('sqlite:///')}?mode=ro", uri=True)) as reader:
                seen.append(str(reader.execute("SELECT data FROM events").fetchall()))

    async with opened(url) as store:
        run = await store.runs.start(OWNER)
        event.listen(Engine, "before_cursor_execute", read)
        try:
            for _ in range(AT_ONCE - 1):  # what is put next is the last write of one transaction
                store.writer.put(lambda _: None)
            store.runs.append_event(run.run_id, "finished")
            await store.runs.finish(run, "finished")
        finally:
            event.remove(Engine, "before_cursor_execute", read)
        assert seen == ["[]"]
        assert await texts_of(store.runs.events_after(OWNER, run.run_id)) == ["1 finished"]


async def test_another_process_can_follow_a_run_wait_for_its_end_and_stop_it(store: Store, tmp_path: Path) -> None:
    async with opened(sqlite_url(tmp_path)) as other, asyncio.timeout(20):
        run = await store.runs.start(OWNER)
        assert store.runs.seconds_since_listener(run.run_id) > 1e9
        listening = asyncio.create_task(texts_of(other.runs.events_after(OWNER, run.run_id)))
        store.runs.append_event(run.run_id, "text", text="hello")
        while store.runs.seconds_since_listener(run.run_id) > 10:
            await asyncio.sleep(0.02)
        assert (await other.runs.ended(OWNER, run.run_id, seconds=0.01)).status == "running"
        waiting = asyncio.create_task(other.runs.ended(OWNER, run.run_id))
        stopped = asyncio.create_task(store.runs.cancel_requested(run.run_id))
        await other.runs.request_cancel(OWNER, run.run_id)
        await stopped
        store.runs.append_event(run.run_id, "cancelled")
        await store.runs.finish(run, "cancelled", error="stopped by the user")
        assert await listening == ["1 hello", "2 cancelled"]
        found = await waiting
    assert (found.status, found.error, found.over) == ("cancelled", "stopped by the user", True)
