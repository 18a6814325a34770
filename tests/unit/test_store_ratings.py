"""Ratings of answers, filters of traces, and the sums of experiments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from task.conversation.messages import user
from task.errors import NotFound, ProviderError
from task.llm.base import Usage
from task.llm.scripted import Reply, says, wants
from task.runs.traces import TraceObserver, TraceStart
from task.store import tables
from task.store.experiments import labels, variants
from task.store.filters import TraceFilter
from task.store.intervals import of_means, of_percentiles, of_shares, percentile, t_quantile
from task.store.store import DAY, Retention, Store
from task.store.trace_records import Price, Rating, Trace
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


async def test_an_answer_that_there_is_not_cannot_be_rated(store: Store) -> None:
    trace = await traced(store, says("1175"))
    for name in ("trace_ffffffff", "chatcmpl-0", "resp_", "", "x" * 300, "trace_%", "nul \0", "\ud800"):
        with pytest.raises(NotFound, match="there is no answer"):
            await store.traces.rate(OWNER, name, "up")
    assert (await store.traces.get(OWNER, trace.trace_id)).rating is None


async def test_the_answer_of_somebody_else_cannot_be_rated(store: Store) -> None:
    trace = await traced(store, says("1175"), run_id="run_0123456789abcdef")
    for name in (trace.trace_id, "run_0123456789abcdef"):
        with pytest.raises(NotFound):
            await store.traces.rate("bob", name, "down")
    assert (await store.traces.get(OWNER, trace.trace_id)).rating is None


async def test_ratings_at_the_same_time_leave_one_of_them(store: Store) -> None:
    trace = await traced(store, says("1175"))
    given: list[tuple[Rating, str]] = [("up", "a"), ("down", "b")] * 10
    await asyncio.gather(*(store.traces.rate(OWNER, trace.trace_id, *pair) for pair in given))
    kept = await store.traces.get(OWNER, trace.trace_id)
    assert (kept.rating, kept.comment) in given
    assert sum((await store.traces.ratings(OWNER)).values()) == 1


async def test_a_rating_survives_the_next_state_of_its_trace(store: Store) -> None:
    observer = TraceObserver("trace_0000abcd", TraceStart(OWNER, "http", "gpt-4o", asked=(user("Hi"),)))
    store.traces.put(observer.trace(), stored=False)
    await store.traces.rate(OWNER, "trace_0000abcd", "up")
    observer.end("finished")
    store.traces.put(observer.trace(), stored=True)
    await store.flush()
    found = await store.traces.get(OWNER, "trace_0000abcd")
    assert (found.status, found.rating) == ("finished", "up")


async def test_a_next_state_does_not_replace_somebody_elses_trace_of_the_same_id(store: Store) -> None:
    theirs = TraceObserver("trace_0000abcd", TraceStart("bob", "http", "gpt-4o"), clock=lambda: 1.0).trace()
    mine = TraceObserver("trace_0000abcd", TraceStart(OWNER, "http", "gpt-4o"), clock=lambda: 2.0).trace()
    for trace, stored in ((theirs, False), (mine, True)):
        store.traces.put(trace, stored=stored)
    await store.flush()
    assert (await store.traces.get("bob", "trace_0000abcd")).started_at == 1.0
    assert len(await listed(store)) == 1


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


async def test_the_variants_of_an_experiment_are_summed_and_compared(store: Store) -> None:
    for number in range(6):
        one = await _variant(store, "greeting/short", 100 + number)
        other = await _variant(store, "greeting/long", 200 + number, failed=number < 2)
        await store.traces.rate(OWNER, one.trace_id, "up" if number else "down")
        await store.traces.rate(OWNER, other.trace_id, "down")
    await _variant(store, "greeting2", 1)
    assert [item.label for item in await labels(store.database, OWNER)].count("greeting2") == 1
    long, short = await variants(store.database, OWNER, ["greeting"])
    assert (long.label, long.model, long.count, long.failures, long.up, long.down) == (
        "greeting/long", "gpt-4o", 6, 2, 0, 6,
    )  # fmt: skip
    assert (short.label, short.count, short.failures, short.up, short.down) == ("greeting/short", 6, 0, 5, 1)
    assert short.tokens == sum(range(100, 106))
    assert short.cost == pytest.approx(short.tokens * 2.5 / 1e6)
    assert (short.priced, long.differences) == (6, {})
    failures, tokens = short.differences["failures"], short.differences["mean_tokens"]
    assert failures.value == pytest.approx(-2 / 6)
    assert tokens.low is not None
    assert tokens.high is not None
    assert tokens.value == pytest.approx(-199 / 6)
    assert tokens.low < tokens.value < tokens.high
    assert set(short.differences) == {"failures", "mean_tokens", "mean_cost", "p50_ms", "p95_ms", "up"}


async def _variant(store: Store, label: str, tokens: int, *, failed: bool = False, **start: Any) -> Trace:
    usage = Usage(0 if failed else tokens, 0)
    replies = [Reply((ProviderError("gone"),))] if failed else [says("Hi", usage=usage)]
    return await traced(store, *replies, experiment=label, **start)


async def test_an_unknown_cost_is_not_zero(store: Store) -> None:
    await _variant(store, "x", 1000)
    await _variant(store, "x", 1000, model="unpriced")
    priced, unpriced = await variants(store.database, OWNER, ["x"])
    assert (priced.model, priced.cost, priced.mean_cost) == ("gpt-4o", 0.0025, 0.0025)
    assert (unpriced.model, unpriced.priced, unpriced.cost, unpriced.mean_cost) == ("unpriced", 0, None, None)
    assert "mean_cost" not in unpriced.differences


async def test_an_experiment_of_another_owner_or_of_no_such_name_is_not_found(store: Store) -> None:
    await _variant(store, "x/a", 1)
    for owner, name in ((OWNER, "y"), ("bob", "x"), (OWNER, "x/"), (OWNER, "")):
        with pytest.raises(NotFound, match="no traces of an experiment"):
            await variants(store.database, owner, [name])
    [found] = await variants(store.database, None, ["x", "x"])
    assert found.label == "x/a"


def test_shares_differ_within_newcombes_interval() -> None:
    found = of_shares(56, 70, 48, 80)  # the example of Newcombe 1998, table II (a)
    assert found is not None
    assert [found.value, found.low, found.high] == pytest.approx([0.2, 0.0524, 0.3339], abs=5e-5)
    apart = of_shares(10, 10, 0, 20)  # table II (h)
    assert apart is not None
    assert [apart.low, apart.high] == pytest.approx([0.6791, 1.0], abs=5e-5)
    assert of_shares(0, 0, 1, 2) is None


def test_means_differ_within_welchs_interval() -> None:
    # Known values of Student's distribution, and an example that can be followed by hand.
    known = {4: 2.7764, 5: 2.5706, 10: 2.2281, 30: 2.0423, 100: 1.9840}
    for freedom, quantile in known.items():
        assert t_quantile(freedom) == pytest.approx(quantile, rel=5e-4)
    found = of_means([2, 4, 6, 8, 10], [1, 2, 3, 4, 5])  # variances 10 and 2.5, 5.88 degrees of freedom
    assert found is not None
    assert [found.value, found.low, found.high] == pytest.approx([3, -0.8880, 6.8880], abs=5e-3)
    few, same = of_means([1, 2], [3, 4, 5, 6, 7]), of_means([3.0] * 5, [2.0] * 5)
    assert few is not None
    assert same is not None
    assert (few.value, few.low) == (-3.5, None)
    assert (same.low, same.high) == (1.0, 1.0)
    assert of_means([], [1]) is None


def test_percentiles_differ_within_an_interval_that_is_the_same_each_time() -> None:
    one, other = [float(value) for value in range(100, 200)], [float(value) for value in range(100)]
    found = of_percentiles(one, other, 0.5)
    assert found == of_percentiles(one, other, 0.5)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    # The median of 100 values has a standard error of about 5 here, so the difference has one of about 7.
    assert (found.value, 80 < found.low < 92, 108 < found.high < 120) == (100, True, True)
    few = of_percentiles([1, 2], [1, 2, 3], 0.95)
    assert few is not None
    assert few.low is None
    assert [percentile([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.75, 0.95, 1.0)] == [1, 2, 3, 4, 4]
    assert of_percentiles([], [1], 0.5) is None
