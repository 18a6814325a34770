"""Every fault of an upstream ends as one clear error that blames what failed, or a valid message, in both backends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession

from task.conversation.messages import user
from task.errors import ProviderError
from task.llm.base import Accumulator, ChatModel, ModelOptions, TextDelta
from task.llm.dial import DialChatModel
from task.llm.openai import OpenAIChatModel
from task.llm.scripted import says, wants
from task.llm.transport import Retries, new_session
from task.local.core.models import UpstreamModel
from task.settings import Settings
from tests.support.agent import running_agent
from tests.support.chat_reader import chat_reader
from tests.support.clock import FakeClock
from tests.support.core import API_KEY, local_core
from tests.support.http_api import MODEL, NOWHERE, Api, http_api
from tests.support.upstream import (
    Answer,
    Item,
    Upstream,
    broken_off,
    error_in_stream,
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
    "401": (http_error(401, f"Incorrect API key provided: {KEY}"), 401, "refused the request"),
    "403": (plain_error(403, f"Access denied for {KEY}"), 403, "refused the request"),
    "404": (plain_error(404, "Unknown application: test-model"), 404, "refused the request"),
    "429": (http_error(429, "Slow down", retry_after=600), 429, "refused the request"),
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


@pytest.mark.fault("calls: 200 parallel calls")
async def test_200_parallel_calls_arrive_whole_and_in_order(session: aiohttp.ClientSession, backend: Build) -> None:
    async with openai_upstream(parallel_calls("calculator", 200, expression="1+1")) as peer:
        accumulator, error = await answered(backend(session, peer))
    calls = accumulator.message().tool_calls
    assert error is None
    assert [json.loads(call.function.arguments)["number"] for call in calls] == list(range(200))
    assert len({call.id for call in calls}) == 200


INDEXES = {"missing": (None, None), "repeated": (0, 0), "gapped": (3, 17)}


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


ONCE: dict[str, Any] = {"deployment_name": MODEL, "llm": {"attempts": 1}}
UNLIMITED = 2**63 - 1
SPENT = (
    "Hit token rate limit. Minute limit: 58 / 50 tokens. Day limit: 58 / 10000 tokens. "
    f"Week limit: 58 / {UNLIMITED} tokens. Month limit: 58 / {UNLIMITED} tokens."
)
LIMIT = Answer(
    (json.dumps({"error": {"message": SPENT, "code": "429"}}).encode(),),
    429,
    {"Content-Type": "application/json", "retry-after": "44"},
)


def settings(tmp_path: Path, dial_endpoint: str, **more: Any) -> Settings:
    values = {"dial_endpoint": dial_endpoint, "data_dir": tmp_path / "agent", "dial_api_key": API_KEY, **ONCE}
    return Settings.model_validate({**values, **more})


@pytest.mark.fault(
    "model: a person's token or request limit at DIAL Core is spent, at a door, in a tool, or without its time"
)
async def test_a_persons_spent_limit_is_named_at_every_door(tmp_path: Path) -> None:
    sentence = "Your limit for the model test-model is used up: 58 of 50 tokens in the last minute. "
    sentence += "It opens again in 44 seconds."
    async with (
        openai_upstream(then=LIMIT) as core,
        running_agent(settings(tmp_path, core.endpoint)) as url,
        chat_reader(url, "key") as reader,
        ClientSession() as session,
    ):
        streamed, whole = await reader.ask("Hi"), await reader.ask("Hi", stream=False)
        reply = await Api(url, core, session).complete("Hi")
    for answer in (streamed, whole):
        assert answer.error is not None
        assert answer.error["display_message"].startswith(sentence)
        assert answer.error["code"] == "429"
    assert (reply.status, reply.headers["Retry-After"]) == (429, "44")
    assert reply.error["message"].startswith(sentence)


@pytest.mark.fault(
    "model: a person's token or request limit at DIAL Core is spent, at a door, in a tool, or without its time"
)
async def test_a_limit_that_is_spent_in_a_tool_reaches_the_model_as_one(tmp_path: Path) -> None:
    call = wants("image_generation_tool", prompt="a cat")
    async with (
        openai_upstream(call, LIMIT, LIMIT, says("Sorry.")) as core,
        running_agent(settings(tmp_path, core.endpoint)) as url,
        chat_reader(url, "key") as reader,
    ):
        await reader.ask("Paint a cat")
        result = core.requests[-1].messages[-1]["content"]
    assert "Your limit for the model dall-e-3 is used up: 58 of 50 tokens in the last minute" in result


@pytest.mark.fault("model: DIAL Core is away, for a model, for a caller's identity, or for a file")
async def test_only_the_log_has_the_address_of_an_absent_core(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_agent(settings(tmp_path, NOWHERE)) as url, ClientSession() as session, openai_upstream() as none:
        reply = await Api(url, none, session).complete("Hi")
    assert reply.status == 502
    assert reply.error["message"].startswith("DIAL Core cannot be reached, so the model test-model was not asked.")
    assert "127.0.0.1" not in reply.text
    assert f"at {NOWHERE}/openai/deployments/test-model/chat/completions" in caplog.text
    assert reply.error["reference"] in caplog.text


@pytest.mark.fault("model: DIAL Core is away, for a model, for a caller's identity, or for a file")
async def test_an_absent_core_is_named_for_a_key_or_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for mode, path, code in (("dial", "/traces", "core_unavailable"), ("open", "/v1/files", "files_unavailable")):
        options = settings(tmp_path / mode, NOWHERE, http={"mode": mode})
        async with running_agent(options) as url, ClientSession() as session, openai_upstream() as none:
            reply = await Api(url, none, session, {"Api-Key": "key"}).get(path)
        assert (reply.status, reply.error["code"]) == (503, code)
        assert "DIAL Core" in reply.error["message"]
        assert "127.0.0.1" not in reply.text
        [line] = [line.getMessage() for line in caplog.records if reply.error["reference"] in line.getMessage()]
        assert line.endswith(f"no answer from DIAL Core at {NOWHERE}")


@pytest.mark.fault("model: the model's server behind Core is down")
async def test_an_upstream_behind_core_is_not_blamed_on_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reply = await behind_local_core(tmp_path, f"{NOWHERE}/v1")
    assert reply.status == 502
    assert "DIAL Core finds no working server for the model test-model" in reply.error["message"]
    assert "127.0.0.1" not in reply.text
    assert f"nothing answers at {NOWHERE}" in caplog.text


@pytest.mark.fault("model: a provider's address without /v1, or another path without a chat")
async def test_an_address_without_v1_is_not_a_missing_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with openai_upstream(then=says("Hello")) as upstream:
        through_core = await behind_local_core(tmp_path, upstream.endpoint)
        async with http_api(tmp_path=tmp_path, openai_base_url=upstream.endpoint, **ONCE) as api:
            direct = await api.complete("Hi")
    for reply in (through_core, direct):
        assert "The server of the model test-model answers, but has no chat at its address." in reply.error["message"]
        assert "127.0.0.1" not in reply.text
    assert f"at {upstream.endpoint}/chat/completions" in caplog.text


async def behind_local_core(tmp_path: Path, base_url: str) -> Any:
    keys = {"keys": {API_KEY: {"project": "p", "role": "r"}}}
    async with (
        local_core(keys, tmp_path, model=UpstreamModel(base_url, MODEL)) as core,
        running_agent(settings(tmp_path, core.url)) as url,
        openai_upstream() as none,
        ClientSession() as session,
    ):
        return await Api(url, none, session).complete("Hi")
