"""Traces: what a run did in the documented shape, kept with or without its texts, rated, listed, replayed."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from task.api.traces import TraceBody
from task.conversation.messages import assistant, user
from task.errors import InvalidRequest, NotFound, ProviderError, ToolError, reference_of
from task.llm.base import ModelOptions, Usage
from task.llm.scripted import Reply, says, wants
from task.loop import Limits
from task.permissions.decisions import Allowed, CallRequest, Decision, Deferred, Denied
from task.permissions.icerc import ICERC
from task.runs.replay import divergence, replayed
from task.runs.traces import TraceRecorder, TraceStart
from task.store import tables
from task.store.store import DAY, Store
from task.store.trace_records import Rating, Trace, TraceFilter, cost_of
from tests.support.stores import OWNER, StoreClock, opened, sqlite_url
from tests.support.tools import MadeTool, answering
from tests.support.traced import traced

PRICES = {"gpt-4o": (2.5, 10)}
COUNTS = (
    wants("calculator", expression="25*47") & Reply((Usage(100, 10),)),
    says("It is ", "1175.", usage=Usage(120, 5)),
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with opened(sqlite_url(tmp_path), StoreClock(), prices=PRICES) as store:
        yield store


def rendered(trace: Trace) -> dict[str, Any]:
    return TraceBody.model_validate(trace, from_attributes=True).model_dump()


async def test_a_trace_has_the_documented_shape(store: Store) -> None:
    options = ModelOptions(temperature=0.7, top_p=1.0, max_tokens=1000)
    session = (await store.sessions.start(OWNER)).session_id
    trace = await traced(store, *COUNTS, options=options, session_id=session, experiment="b")
    shape = rendered(trace)
    [call] = shape["tool_calls"]
    assert [turn["role"] for turn in shape["turns"]] == ["user", "assistant", "tool", "assistant"]
    assert shape["turns"][1]["tool_calls"] == [
        {"id": call["id"], "name": "calculator", "arguments": '{"expression": "25*47"}'}
    ]
    assert shape["turns"][3]["tool_calls"] is None
    assert (shape["turns"][2]["content"], shape["turns"][2]["tool_call_id"]) == ("1175", call["id"])
    assert (call["name"], call["arguments"], call["result"]) == ("calculator", {"expression": "25*47"}, "1175")
    assert (call["full_result_length"], call["duration_ms"] >= 0) == (4, True)
    assert shape["config"] == {"model": "gpt-4o", "temperature": 0.7, "top_p": 1.0, "max_tokens": 1000}
    assert (shape["total_tokens"], shape["error"], shape["status"]) == (235, None, "finished")
    assert shape["cost"] == pytest.approx((220 * 2.5 + 15 * 10) / 1e6)
    assert (shape["experiment"], shape["started_at"]) == ("b", "2027-01-15T08:00:00.000+00:00")
    assert (await store.sessions.get(OWNER, session)).traces == (trace.trace_id,)


async def test_a_long_result_is_cut_in_the_list_of_calls_and_whole_by_reference(store: Store) -> None:
    text, quick_done = "x" * 30_000, asyncio.Event()

    async def look() -> str:
        await quick_done.wait()
        return text

    async def quick() -> str:
        quick_done.set()
        return "quick"

    tools = [MadeTool("look", look), MadeTool("quick", quick)]
    trace = await traced(store, wants("look") & wants("quick"), says("done"), tools=tools)
    assert [turn.content for turn in trace.turns if turn.role == "tool"] == [text, "quick"]  # in the calls' order
    place = [call.name for call in trace.tool_calls].index("look")
    shape = rendered(trace)["tool_calls"][place]
    assert shape["result"] == "x" * 200 + "..."
    assert shape["full_result_length"] == 30_000
    assert shape["full_result"] == f"/traces/{trace.trace_id}/calls/{place}"
    assert await store.traces.result(OWNER, trace.trace_id, place) == text
    [listed] = (await store.traces.list(OWNER)).items
    assert rendered(listed)["tool_calls"][place] == shape
    with pytest.raises(NotFound, match="has no call 2"):
        await store.traces.result(OWNER, trace.trace_id, 2)


async def test_what_models_behind_tools_take_is_counted_apart(store: Store) -> None:
    class Spender(MadeTool):
        async def _execute(self, tool_call_params: Any) -> str:
            tool_call_params.caller.spend(Usage(1000, 100))
            tool_call_params.caller.spend(Usage(200, 20), "writer")
            tool_call_params.caller.spend(Usage(30, 3), "gpt-4o")
            return "spent"

    async def nothing() -> str:
        return ""

    trace = await traced(store, wants("spend"), says("done", usage=Usage(10, 1)), tools=[Spender("spend", nothing)])
    assert trace.usage == {"gpt-4o": Usage(40, 4), "tools": Usage(1000, 100), "writer": Usage(200, 20)}
    assert trace.total_tokens == 1364


def test_tokens_cost_what_the_model_that_took_them_costs() -> None:
    usage = {"gpt-4o": Usage(100, 10), "mini": Usage(1000, 100), "tools": Usage(1, 1)}
    prices = {"gpt-4o": (2, 10), "mini": (0.1, 0.5), "other": (9, 9)}
    cost = cost_of("gpt-4o", usage, prices)
    assert cost == pytest.approx((100 * 2 + 10 * 10 + 1000 * 0.1 + 100 * 0.5 + 2 + 10) / 1e6)
    assert cost_of("gpt-4o", usage, {"gpt-4o": (2, 10)}) == pytest.approx((1101 * 2 + 111 * 10) / 1e6)
    assert cost_of("gpt-4o", usage, {"mini": (1, 1)}) is None


async def test_decisions_of_the_gate_are_kept(store: Store) -> None:
    class Gate:
        async def decide(self, request: CallRequest) -> Decision:
            card = ICERC("see", "look", "a view")
            return {"look": Deferred(card, "d1", "no rule"), "touch": Denied("not here")}.get(
                request.call.name, Allowed("rule 3")
            )

    tools = [answering(name, "fine") for name in ("look", "touch", "hear")]
    trace = await traced(store, wants("look") & wants("touch") & wants("hear"), tools=tools, gate=Gate())
    assert trace.status == "suspended"
    shape = {decision.tool: (decision.verdict, decision.reason, decision.by) for decision in trace.decisions}
    assert shape == {
        "look": ("deferred", "no rule", ""), "touch": ("denied", "not here", ""), "hear": ("allowed", "", "rule 3"),
    }  # fmt: skip
    assert next(item.card for item in trace.decisions if item.tool == "look")
    assert divergence(trace, await replayed(trace)) is None


async def test_without_content_a_trace_keeps_no_texts(store: Store, tmp_path: Path) -> None:
    async def secret() -> str:
        raise ToolError("SECRET is not here")

    refused = ProviderError("SECRET refused", status_code=400, code="bad")
    trace = await traced(
        store,
        says("SECRET thought") & wants("secret"),
        says("SECRET ") & Reply((refused,)),
        tools=[MadeTool("secret", secret, {"type": "object"})],
        asked=[user("SECRET?")],
        content=False,
    )
    assert trace.error == f"the model failed (status 400, code bad) (error reference: {reference_of(refused)})"
    assert [(turn.role, turn.content, turn.size) for turn in trace.turns][:2] == [
        ("user", None, 7), ("assistant", None, 14),
    ]  # fmt: skip
    [call] = trace.tool_calls
    assert (call.name, call.arguments, call.result, call.result_length, call.failed) == ("secret", {}, "", 25, True)
    assert trace.question is None
    assert await listed(store, text="secret") == set()
    assert await listed(store, tool="secret") == {trace.trace_id}
    await store.writer.flush()
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"SECRET" not in stored
    with pytest.raises(InvalidRequest, match="kept without texts"):
        await replayed(trace)


@pytest.mark.fault("store: another owner's trace")
async def test_another_owners_trace_is_not_there_but_an_operator_reads_all(store: Store) -> None:
    trace = await traced(store, says("hi"))
    for owner in ("bob", ""):
        with pytest.raises(NotFound, match="there is no trace"):
            await store.traces.get(owner, trace.trace_id)
        assert (await store.traces.list(owner)).items == ()
    assert (await store.traces.get(None, trace.trace_id)).trace_id == trace.trace_id
    assert [found.trace_id for found in (await store.traces.list(None)).items] == [trace.trace_id]


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param(COUNTS, id="finished"),
        pytest.param((wants("calculator", expression="1/0"), says("no")), id="failed-call"),
        pytest.param((wants("nothing"), says("no")), id="unknown-tool"),
        pytest.param((wants("calculator"), says("no")), id="bad-arguments"),
        pytest.param((says("a") & Reply((ProviderError("gone"),)),), id="failed"),
        pytest.param([wants("calculator", expression="1+1") for _ in range(4)], id="out-of-steps-and-words"),
    ],
)
async def test_a_replay_does_the_same_again(store: Store, replies: tuple[Reply, ...]) -> None:
    trace = await traced(store, *replies, limits=Limits(steps=3))
    again = await replayed(trace)
    assert divergence(trace, again) is None
    assert (again.status, again.total_tokens) == (trace.status, trace.total_tokens)


async def test_a_comparison_names_the_first_turn_that_differs(store: Store) -> None:
    one = await traced(store, *COUNTS)
    other = await traced(store, wants("calculator", expression="25+47"), says("72"))
    found = divergence(one, other)
    assert found is not None
    assert (found.turn, found.what) == (1, "calls")
    assert found.one == [{"name": "calculator", "arguments": {"expression": "25*47"}}]
    assert found.other == [{"name": "calculator", "arguments": {"expression": "25+47"}}]
    shorter = await traced(store, says("1175"))
    assert (divergence(shorter, await traced(store, says("1176"))) or found).what == "content"
    assert divergence(one, await traced(store, *COUNTS)) is None


async def test_a_long_run_is_saved_while_it_lasts(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    async with opened(url) as store, opened(url) as other:
        saved = asyncio.Event()

        async def wait() -> str:
            async with asyncio.timeout(20):
                while not (await other.traces.list(OWNER)).items:
                    await asyncio.sleep(0.05)
            [early] = (await other.traces.list(OWNER)).items
            assert (early.status, [turn.role for turn in early.turns]) == ("running", ["user", "assistant"])
            saved.set()
            return "done"

        trace = await traced(store, wants("wait"), says("yes"), tools=[MadeTool("wait", wait)])
        assert saved.is_set()
        assert (trace.status, len(trace.turns), len((await other.traces.list(OWNER)).items)) == ("finished", 4, 1)


async def listed(store: Store, owner: str | None = OWNER, **which: Any) -> set[str]:
    return {trace.trace_id for trace in (await store.traces.list(owner, which=TraceFilter(**which))).items}


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
    observer = TraceRecorder(None, TraceStart(OWNER, "http", "gpt-4o", asked=(user("Hi"),)), "trace_0000abcd")
    store.traces.put(observer.trace(), stored=False)
    await store.traces.rate(OWNER, "trace_0000abcd", "up")
    observer.end("finished")
    store.traces.put(observer.trace(), stored=True)
    await store.writer.flush()
    found = await store.traces.get(OWNER, "trace_0000abcd")
    assert (found.status, found.rating) == ("finished", "up")


@pytest.mark.fault("store: two traces of one id")
async def test_a_next_state_does_not_replace_somebody_elses_trace_of_the_same_id(store: Store) -> None:
    theirs = TraceRecorder(None, TraceStart("bob", "http", "gpt-4o"), "trace_0000abcd").trace()
    mine = TraceRecorder(None, TraceStart(OWNER, "http", "gpt-4o"), "trace_0000abcd").trace()
    for trace, stored in ((theirs, False), (mine, True)):
        store.traces.put(trace, stored=stored)
    await store.writer.flush()
    assert (await store.traces.get("bob", "trace_0000abcd")).started_at == theirs.started_at
    assert await listed(store) == set()


@pytest.mark.fault("store: half a surrogate pair or a NUL in an answer, a filter or a comment")
async def test_half_characters_of_a_model_or_a_person_lose_no_trace(store: Store) -> None:
    trace = await traced(store, says("half \ud800 a pair, nul \0"), asked=[user("\ud800 half?")])
    assert await listed(store, text="half") == await listed(store, text="\ud800 HALF") == {trace.trace_id}
    rated = await store.traces.rate(OWNER, trace.trace_id, "down", "\ud800 and \0")
    assert rated.comment == "? and  "
    assert await listed(store, model="\ud800") == await listed(store, tool="\ud800") == set()


async def test_retention_removes_ratings_with_their_traces(tmp_path: Path) -> None:
    clock = StoreClock()
    async with opened(sqlite_url(tmp_path), clock, days=30) as store:
        old = await traced(store, wants("calculator", expression="1+1"), says("2"))
        await store.traces.rate(OWNER, old.trace_id, "down")
        clock.now += 31 * DAY
        await store.forget()
        assert await store.traces.ratings(OWNER) == {"up": 0, "down": 0}
        assert await store.database.rows(select(tables.trace_words.c.trace_id)) == []


async def test_at_a_limit_or_after_a_failure_the_trace_names_it_and_keeps_texts_and_tokens(store: Store) -> None:
    again = wants("look", at="x") & Reply((Usage(10, 1),))
    looks = [answering("look", "nothing", shape={"type": "object"})]
    end = says("Not done.", usage=Usage(5, 5))
    trace = await traced(store, again, again, end, tools=looks, limits=Limits(steps=2))
    assert (trace.status, trace.limits, trace.total_tokens) == ("limited", ("the limit of 2 steps",), 32)
    assert trace.error == "stopped at the limit of 2 steps"
    gone = ProviderError("the model is gone", status_code=503)
    trace = await traced(store, says("I am ") & Reply((gone,)))
    assert (trace.status, trace.error) == ("failed", f"the model is gone (error reference: {reference_of(gone)})")
    assert trace.turns[-1].content == "I am "


async def test_earlier_messages_of_a_resumed_turn_and_the_question_before_it_belong_to_its_trace(store: Store) -> None:
    asked = [user("hi"), assistant("hello"), user("25*47?")]
    trace = await traced(store, *COUNTS, asked=asked, history=7)
    assert (trace.asked, trace.history) == (3, 7)
    assert divergence(trace, await replayed(trace)) is None
    trace = await traced(store, says("Noted."), asked=(), question="Note 1")
    assert trace.question == "Note 1"
    assert await listed(store, text="note 1") == {trace.trace_id}


@pytest.mark.fault("store: a rating of an answer that there is not, or that left no trace")
@pytest.mark.fault("store: a rating or a replay of another owner's answer")
async def test_an_answer_is_rated_changed_and_retracted_by_its_owner_and_no_other_is(store: Store) -> None:
    trace = await traced(store, says("1175"), run_id="run_0123456789abcdef")
    assert (trace.rating, trace.comment) == (None, None)
    rated = await store.traces.rate(OWNER, trace.trace_id, "down", "wrong digit")
    assert (rated.trace_id, rated.rating, rated.comment) == (trace.trace_id, "down", "wrong digit")
    await store.traces.rate(OWNER, "chatcmpl-0123456789abcdef", "up")
    again = await store.traces.get(OWNER, trace.trace_id)
    assert (again.rating, again.comment) == ("up", None)
    assert (await store.traces.rate(OWNER, "resp_0123456789abcdef", "up")).rating == "up"
    assert (await store.traces.rate(OWNER, "run_0123456789abcdef", None)).rating is None
    for name in ("trace_ffffffff", "chatcmpl-0", "resp_", "", "x" * 300, "trace_%", "nul \0", "\ud800"):
        with pytest.raises(NotFound, match="there is no answer"):
            await store.traces.rate(OWNER, name, "up")
    for name in (trace.trace_id, "run_0123456789abcdef"):
        with pytest.raises(NotFound):
            await store.traces.rate("bob", name, "down")
    assert (await store.traces.get(OWNER, trace.trace_id)).rating is None


@pytest.mark.fault("store: wildcards of SQL in a filter")
async def test_traces_are_filtered_by_all_that_they_are(store: Store) -> None:
    sums = await traced(store, wants("calculator", expression="25*47"), says("It is 1175."), experiment="a")
    poem = await traced(
        store, says("Die BÄUME rauschen, 100%"), asked=[user("Ein Gedicht")], model="small", experiment="b", door="dial"
    )
    await store.traces.rate(OWNER, poem.trace_id, "down")
    one, other, both, none = {sums.trace_id}, {poem.trace_id}, {sums.trace_id, poem.trace_id}, set[str]()
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"experiment": "a"}, one),
        ({"experiment": "a", "status": "failed"}, none),
        ({"status": "finished"}, both),
        ({"door": "dial"}, other),
        ({"except_door": "dial"}, one),
        ({"until": sums.started_at}, none),
        ({"since": sums.started_at}, both),
        ({"rating": "down"}, other),
        ({"rating": "up"}, none),
        ({"model": "small"}, other),
        ({"tool": "calculator"}, one),
        ({"tool": "calc"}, none),
        ({"tool": "%"}, none),
        ({"text": "bäume"}, other),
        ({"text": "GEDICHT"}, other),
        ({"text": "100%"}, other),
        ({"text": "1_5"}, none),
        ({"text": "1175", "tool": "calculator", "status": "finished"}, one),
        ({"text": "1175", "model": "small"}, none),
    ]
    for which, expected in cases:
        assert await listed(store, **which) == expected, which
    assert await listed(store, "bob", tool="calculator") == none
    assert await store.traces.ratings(OWNER) == {"up": 0, "down": 1}
    assert await store.traces.ratings(OWNER, TraceFilter(tool="calculator")) == {"up": 0, "down": 0}
    assert await store.traces.ratings("bob") == {"up": 0, "down": 0}
