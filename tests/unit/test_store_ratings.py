"""Ratings of answers, and filters of traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from task.conversation.messages import user
from task.errors import NotFound
from task.llm.scripted import says, wants
from task.runs.traces import TraceObserver, TraceStart
from task.store import tables
from task.store.store import DAY, Retention, Store
from task.store.trace_records import Price, Rating, TraceFilter
from tests.support.stores import OWNER, StoreClock, opened, sqlite_url
from tests.support.traced import traced


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with opened(sqlite_url(tmp_path), StoreClock(), prices={"gpt-4o": Price(2.5, 10)}) as store:
        yield store


async def listed(store: Store, owner: str | None = OWNER, **which: Any) -> set[str]:
    return {trace.trace_id for trace in (await store.traces.list(owner, which=TraceFilter(**which))).items}


async def test_an_answer_is_rated_changed_and_retracted(store: Store) -> None:
    trace = await traced(store, says("1175"), run_id="run_0123456789abcdef")
    assert (trace.rating, trace.comment) == (None, None)
    rated = await store.traces.rate(OWNER, trace.trace_id, "down", "wrong digit")
    assert (rated.trace_id, rated.rating, rated.comment) == (trace.trace_id, "down", "wrong digit")
    await store.traces.rate(OWNER, "chatcmpl-0123456789abcdef", "up")
    again = await store.traces.get(OWNER, trace.trace_id)
    assert (again.rating, again.comment) == ("up", None)
    assert (await store.traces.rate(OWNER, "resp_0123456789abcdef", "up")).rating == "up"
    assert (await store.traces.rate(OWNER, "run_0123456789abcdef", None)).rating is None


@pytest.mark.fault("store: a rating of an answer that there is not, or that left no trace")
async def test_an_answer_that_there_is_not_cannot_be_rated(store: Store) -> None:
    trace = await traced(store, says("1175"))
    for name in ("trace_ffffffff", "chatcmpl-0", "resp_", "", "x" * 300, "trace_%", "nul \0", "\ud800"):
        with pytest.raises(NotFound, match="there is no answer"):
            await store.traces.rate(OWNER, name, "up")
    assert (await store.traces.get(OWNER, trace.trace_id)).rating is None


@pytest.mark.fault("store: a rating or a replay of another owner's answer")
async def test_the_answer_of_somebody_else_cannot_be_rated(store: Store) -> None:
    trace = await traced(store, says("1175"), run_id="run_0123456789abcdef")
    for name in (trace.trace_id, "run_0123456789abcdef"):
        with pytest.raises(NotFound):
            await store.traces.rate("bob", name, "down")
    assert (await store.traces.get(OWNER, trace.trace_id)).rating is None


@pytest.mark.fault("store: ratings of one answer at the same time, or while its trace is written")
async def test_ratings_at_the_same_time_leave_one_of_them(store: Store) -> None:
    trace = await traced(store, says("1175"))
    given: list[tuple[Rating, str]] = [("up", "a"), ("down", "b")] * 10
    await asyncio.gather(*(store.traces.rate(OWNER, trace.trace_id, *pair) for pair in given))
    kept = await store.traces.get(OWNER, trace.trace_id)
    assert (kept.rating, kept.comment) in given
    assert sum((await store.traces.ratings(OWNER)).values()) == 1


@pytest.mark.fault("store: ratings of one answer at the same time, or while its trace is written")
async def test_a_rating_survives_the_next_state_of_its_trace(store: Store) -> None:
    observer = TraceObserver("trace_0000abcd", TraceStart(OWNER, "http", "gpt-4o", asked=(user("Hi"),)))
    store.traces.put(observer.trace(), stored=False)
    await store.traces.rate(OWNER, "trace_0000abcd", "up")
    observer.end("finished")
    store.traces.put(observer.trace(), stored=True)
    await store.flush()
    found = await store.traces.get(OWNER, "trace_0000abcd")
    assert (found.status, found.rating) == ("finished", "up")


@pytest.mark.fault("store: two traces of one id")
async def test_a_next_state_does_not_replace_somebody_elses_trace_of_the_same_id(store: Store) -> None:
    theirs = TraceObserver("trace_0000abcd", TraceStart("bob", "http", "gpt-4o"), clock=lambda: 1.0).trace()
    mine = TraceObserver("trace_0000abcd", TraceStart(OWNER, "http", "gpt-4o"), clock=lambda: 2.0).trace()
    for trace, stored in ((theirs, False), (mine, True)):
        store.traces.put(trace, stored=stored)
    await store.flush()
    assert (await store.traces.get("bob", "trace_0000abcd")).started_at == 1.0
    assert len(await listed(store)) == 1


@pytest.mark.fault("store: wildcards of SQL in a filter")
async def test_traces_are_filtered_by_rating_model_tool_and_text(store: Store) -> None:
    sums = await traced(store, wants("calculator", expression="25*47"), says("It is 1175."))
    poem = await traced(store, says("Die BÄUME rauschen, 100%"), asked=[user("Ein Gedicht")], model="small")
    await store.traces.rate(OWNER, poem.trace_id, "down")
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"rating": "down"}, {poem.trace_id}),
        ({"rating": "up"}, set()),
        ({"model": "small"}, {poem.trace_id}),
        ({"tool": "calculator"}, {sums.trace_id}),
        ({"tool": "calc"}, set()),
        ({"tool": "%"}, set()),
        ({"text": "bäume"}, {poem.trace_id}),
        ({"text": "GEDICHT"}, {poem.trace_id}),
        ({"text": "100%"}, {poem.trace_id}),
        ({"text": "1_5"}, set()),
        ({"text": "1175", "tool": "calculator", "status": "finished"}, {sums.trace_id}),
        ({"text": "1175", "model": "small"}, set()),
    ]
    for which, expected in cases:
        assert await listed(store, **which) == expected, which
    assert await listed(store, "bob", tool="calculator") == set()
    assert await store.traces.ratings(OWNER) == {"up": 0, "down": 1}
    assert await store.traces.ratings(OWNER, TraceFilter(tool="calculator")) == {"up": 0, "down": 0}
    assert await store.traces.ratings("bob") == {"up": 0, "down": 0}


@pytest.mark.fault("store: half a surrogate pair or a NUL in an answer, a filter or a comment")
async def test_half_characters_of_a_model_or_a_person_lose_no_trace(store: Store) -> None:
    trace = await traced(store, says("half \ud800 a pair, nul \0"), asked=[user("\ud800 half?")])
    assert await listed(store, text="half") == await listed(store, text="\ud800 HALF") == {trace.trace_id}
    rated = await store.traces.rate(OWNER, trace.trace_id, "down", "\ud800 and \0")
    assert rated.comment == "? and  "
    assert await listed(store, model="\ud800") == await listed(store, tool="\ud800") == set()


async def test_texts_that_are_not_kept_are_not_found(store: Store) -> None:
    trace = await traced(store, wants("calculator", expression="25*47"), says("1175"), content=False)
    assert trace.question is None
    assert await listed(store, text="1175") == await listed(store, text="25*47") == set()
    assert await listed(store, tool="calculator") == {trace.trace_id}


async def test_the_trace_of_a_run_that_continues_another_names_the_question(store: Store) -> None:
    trace = await traced(store, says("Noted."), asked=(), question="Note 1")
    assert trace.question == "Note 1"
    assert await listed(store, text="note 1") == {trace.trace_id}


async def test_retention_removes_ratings_with_their_traces(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock, retention=Retention(days=30)) as store:
        old = await traced(store, wants("calculator", expression="1+1"), says("2"))
        await store.traces.rate(OWNER, old.trace_id, "down")
        clock.now += 31 * DAY
        await store.forget()
        assert await store.traces.ratings(OWNER) == {"up": 0, "down": 0}
        words = await store.database.read(_words)
    assert words == 0


def _words(connection: Connection) -> int:
    return len(connection.execute(select(tables.trace_words.c.trace_id)).all())
