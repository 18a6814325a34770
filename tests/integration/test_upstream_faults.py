"""Every fault of an upstream ends as one clear error or a valid message, through both backends, and what came stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import aiohttp
import pytest

from task.conversation.messages import user
from task.errors import ProviderError
from task.llm.accumulator import Accumulator
from task.llm.base import ChatModel, ModelOptions, TextDelta, Usage
from task.llm.dial import DialChatModel
from task.llm.openai import OpenAIChatModel
from task.llm.scripted import says, wants
from task.llm.transport import Retries, new_session
from tests.support.clock import FakeClock
from tests.support.upstream import (
    Answer,
    Framing,
    Item,
    Upstream,
    always,
    broken_off,
    cut_arguments,
    error_in_stream,
    framed,
    hanging,
    html_error,
    http_error,
    malformed_chunk,
    never_answering,
    openai_upstream,
    parallel_calls,
    plain_error,
)  # fmt: skip

KEY = "sk-test-key"
TEXT = says("The ", "answer ", "is ", "1175")
Build = Callable[[aiohttp.ClientSession, Upstream], ChatModel]
RETRIES = Retries(sleep=FakeClock(runs=True).sleep)


def openai(session: aiohttp.ClientSession, peer: Upstream) -> ChatModel:
    return OpenAIChatModel(session, peer.url, KEY, "test-model", retries=RETRIES)


def dial(session: aiohttp.ClientSession, peer: Upstream) -> ChatModel:
    return DialChatModel(session, peer.endpoint, "test-model", KEY, retries=RETRIES)


@pytest.fixture(params=[openai, dial], ids=["openai", "dial"])
def backend(request: pytest.FixtureRequest) -> Build:
    return request.param


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


@pytest.fixture
async def impatient() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session(read_seconds=1) as session:
        yield session


async def answered(model: ChatModel) -> tuple[Accumulator, ProviderError | None]:
    """Everything that came, and the error it ended with."""
    accumulator = Accumulator()
    try:
        async for delta in model.stream([user("25*47?")], [], ModelOptions()):
            accumulator.add(delta)
    except ProviderError as error:
        return accumulator, error
    return accumulator, None


BEFORE_THE_STREAM = {
    "401": (http_error(401, f"Incorrect API key provided: {KEY}"), 401, "refused the key"),
    "403": (plain_error(403, f"Access denied for {KEY}"), 403, "does not allow this key"),
    "404": (plain_error(404, "Unknown application: test-model"), 404, "does not know the model"),
    "429": (http_error(429, "Slow down", retry_after=600), 429, "too many requests"),
    "500": (http_error(500, "boom"), 500, "failed"),
    "502 in plain text": (plain_error(502, "No route"), 502, "failed"),
    "503 in HTML": (html_error(503), 503, "failed"),
    "400 without a body": (plain_error(400, ""), 400, "refused the request"),
}


@pytest.mark.fault("model: the model answers 429", case="429")
@pytest.mark.fault("model: the model answers 500", case="500")
@pytest.mark.parametrize(("fault", "status", "words"), BEFORE_THE_STREAM.values(), ids=BEFORE_THE_STREAM)
async def test_an_error_before_the_stream_is_reported_without_key_or_body(
    session: aiohttp.ClientSession, backend: Build, fault: Item, status: int, words: str
) -> None:
    async with openai_upstream(then=fault) as peer:
        accumulator, error = await answered(backend(session, peer))
    assert error is not None
    assert words in str(error)
    assert (error.status_code, accumulator.text) == (status, "")
    assert KEY not in f"{error} {error.text}"


IN_THE_STREAM = {
    "malformed chunk": (malformed_chunk(TEXT, chunks=3), None, "malformed_answer"),
    "connection reset": (broken_off(TEXT, chunks=3), None, "interrupted"),
    "clean end without a finish reason": (broken_off(TEXT, chunks=3, reset=False), None, "interrupted"),
    "error event": (error_in_stream(TEXT, chunks=3, code="overloaded"), 500, "overloaded"),
    "error event with a status": (error_in_stream(TEXT, chunks=3, code="429"), 429, "429"),
    "silence": (hanging(TEXT, chunks=3), None, "timeout"),
}


@pytest.mark.parametrize(("fault", "status", "code"), IN_THE_STREAM.values(), ids=IN_THE_STREAM)
async def test_an_error_in_the_stream_keeps_what_came_before_and_is_not_tried_again(
    impatient: aiohttp.ClientSession, backend: Build, fault: Item, status: int | None, code: str
) -> None:
    async with openai_upstream(fault, then=TEXT) as peer:
        accumulator, error = await answered(backend(impatient, peer))
    assert error is not None
    assert (error.status_code, error.code) == (status, code)
    assert (accumulator.text, accumulator.finish_reason) == ("The answer ", None)
    assert len(peer.requests) == 1


@pytest.mark.fault("model: a model that never answers")
async def test_a_server_that_never_answers_becomes_a_timeout(impatient: aiohttp.ClientSession, backend: Build) -> None:
    async with openai_upstream(never_answering(), then=TEXT) as peer:
        _, error = await answered(backend(impatient, peer))
    assert error is not None
    assert error.code == "timeout"


async def test_passing_faults_before_the_stream_are_survived(session: aiohttp.ClientSession, backend: Build) -> None:
    async with openai_upstream(http_error(429, retry_after=1), html_error(503), TEXT) as peer:
        accumulator, error = await answered(backend(session, peer))
    assert (error, accumulator.text, len(peer.requests)) == (None, "The answer is 1175", 3)


async def test_a_slow_drip_is_no_silence(impatient: aiohttp.ClientSession, backend: Build) -> None:
    async with openai_upstream(framed(says("ü"), Framing(bytes_per_write=1, seconds_per_write=0.002))) as peer:
        accumulator, error = await answered(backend(impatient, peer))
    assert (error, accumulator.text) == (None, "ü")


@pytest.mark.fault("calls: cut tool JSON")
@pytest.mark.parametrize("finish", ["length", "tool_calls"])
async def test_cut_tool_arguments_are_named_and_stored_as_valid_json(
    session: aiohttp.ClientSession, backend: Build, finish: str
) -> None:
    async with openai_upstream(cut_arguments("execute_code", '{"code": "print(1', finish)) as peer:
        accumulator, error = await answered(backend(session, peer))
    (call,) = accumulator.message().tool_calls
    assert (error, call.function.arguments) == (None, "{}")
    assert call.problem is not None
    assert ("cut off by the length limit" in call.problem) == (finish == "length")


@pytest.mark.fault("calls: 200 parallel calls")
async def test_200_parallel_calls_arrive_whole_and_in_order(session: aiohttp.ClientSession, backend: Build) -> None:
    async with openai_upstream(parallel_calls("calculator", 200, expression="1+1")) as peer:
        accumulator, error = await answered(backend(session, peer))
    calls = accumulator.message().tool_calls
    assert error is None
    assert [json.loads(call.function.arguments)["number"] for call in calls] == list(range(200))
    assert len({call.id for call in calls}) == 200


INDEXES = {
    "missing": (None, None),
    "repeated": (0, 0),
    "gapped": (3, 17),
}


@pytest.mark.fault("calls: repeated indexes", case="repeated")
@pytest.mark.fault("calls: missing indexes", case="missing")
@pytest.mark.fault("calls: gapped indexes", case="gapped")
@pytest.mark.parametrize("indexes", INDEXES.values(), ids=INDEXES)
@pytest.mark.parametrize("ids", [("call_a", "call_b"), (None, None), ("same", "same")], ids=["ids", "no ids", "one id"])
async def test_calls_with_odd_indexes_and_ids_are_distinguished(
    session: aiohttp.ClientSession, backend: Build, indexes: tuple[int | None, ...], ids: tuple[str | None, ...]
) -> None:
    calls = [
        {"index": index, "id": call_id, "function": {"name": "calculator", "arguments": f'{{"expression": "{n}"}}'}}
        for n, (index, call_id) in enumerate(zip(indexes, ids, strict=True))
    ]
    async with openai_upstream(chunked({"tool_calls": calls[:1]}, {"tool_calls": calls[1:]})) as peer:
        accumulator, error = await answered(backend(session, peer))
    calls = accumulator.message().tool_calls
    assert error is None
    assert [call.function.arguments for call in calls] == ['{"expression": "0"}', '{"expression": "1"}']
    assert len({call.id for call in calls}) == 2


async def test_the_same_call_for_ever_gets_a_new_id_each_time(session: aiohttp.ClientSession, backend: Build) -> None:
    async with openai_upstream(then=always(wants("calculator", expression="1"))) as peer:
        model = backend(session, peer)
        answers = [(await answered(model))[0].message().tool_calls for _ in range(20)]
    assert {call.name for (call,) in answers} == {"calculator"}
    assert len(peer.requests) == 20


async def test_usage_alone_last_and_a_filter_chunk_first_are_read(
    session: aiohttp.ClientSession, backend: Build
) -> None:
    reply = says("1175", usage=Usage(100, 20))
    async with openai_upstream(framed(reply, Framing(filter_chunk_first=True, usage_apart=True))) as peer:
        accumulator, error = await answered(backend(session, peer))
    assert (error, accumulator.text, accumulator.usage) == (None, "1175", Usage(100, 20))


@pytest.mark.parametrize("phase", [never_answering(), hanging(TEXT, chunks=2)], ids=["before", "during"])
async def test_a_cancelled_run_closes_the_upstream_connection_at_once(backend: Build, phase: Item) -> None:
    async with new_session() as session, openai_upstream(phase) as peer:
        task = asyncio.create_task(answered(backend(session, peer)))
        await peer.received(1)
        task.cancel()
        await peer.disconnected(1)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_reader_that_leaves_early_closes_the_upstream_connection(backend: Build) -> None:
    async with new_session() as session, openai_upstream(hanging(TEXT, chunks=3)) as peer:
        stream = backend(session, peer).stream([user("25*47?")], [], ModelOptions())
        async with aclosing(stream) as deltas:
            assert await anext(deltas) == TextDelta("The ")
        await peer.disconnected(1)


def chunked(*deltas: dict[str, object]) -> Answer:
    """An answer of exactly these deltas, as one chunk each."""
    finish = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    events = [json.dumps({"choices": [choice]}) for choice in (*chunks, finish)]
    return Answer(tuple(f"data: {event}\n\n".encode() for event in (*events, "[DONE]")))
