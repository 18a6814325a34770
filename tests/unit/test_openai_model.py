"""The answers of OpenAI-compatible servers and of DIAL deployments become deltas, whatever their streams look like."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import product
from typing import Any

import aiohttp
import pytest

from task.conversation.messages import Attachment, user
from task.errors import ProviderError
from task.llm.base import (
    Accumulator,
    Delta,
    DialDelta,
    FileDelta,
    Finish,
    ModelOptions,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from task.llm.chat_chunks import chat_deltas
from task.llm.chat_request import AZURE
from task.llm.dial import DialChatModel
from task.llm.failures import INTERRUPTED, MALFORMED
from task.llm.openai import OpenAIChatModel, completions_url
from task.llm.scripted import says, wants
from task.llm.transport import new_session
from tests.support.upstream import HANG, RESET, Answer, Framing, Upstream, dripping, framed, openai_upstream
from tests.support.upstream_wire import Part

LOOKS = {
    "openai": Framing(),
    "no [DONE]": Framing(done=False),
    "usage on the last chunk": Framing(usage_apart=False),
    "filter chunk first": Framing(filter_chunk_first=True),
    "null content": Framing(null_content=True),
    "three bytes at a time": Framing(bytes_per_write=3),
    "JSON instead of events": Framing(as_json=True),
}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


async def deltas(session: aiohttp.ClientSession, peer: Upstream) -> list[Delta]:
    model = OpenAIChatModel(session, peer.url, "sk-test", "test-model")
    return [delta async for delta in model.stream([user("25*47?")], [], ModelOptions())]


def folded(answer: list[Delta]) -> Accumulator:
    accumulator = Accumulator()
    for delta in answer:
        accumulator.add(delta)
    return accumulator


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_every_variant_of_a_stream_gives_the_same_answer(session: aiohttp.ClientSession, look: Framing) -> None:
    reply = says("Größe ", "🙂: ", usage=Usage(12, 3)) & wants("calculator", expression="25*47") & wants("clock")
    async with openai_upstream(framed(reply, look)) as peer:
        answer = folded(await deltas(session, peer))
    assert answer.text == "Größe 🙂: "
    assert [(call.id, call.name, call.function.arguments) for call in answer.message().tool_calls] == [
        ("call_1_0", "calculator", '{"expression": "25*47"}'), ("call_1_1", "clock", "{}")
    ]  # fmt: skip
    assert (answer.usage, answer.finish_reason) == (Usage(12, 3), "tool_calls")


async def test_an_answer_ends_with_its_usage_and_exactly_one_finish(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says("11", "75")) as peer:
        assert await deltas(session, peer) == [TextDelta("11"), TextDelta("75"), Usage(10, 5), Finish("stop")]


async def test_text_arrives_while_the_answer_is_still_being_made(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(dripping(says("11", "75"), seconds=0.0)) as peer:
        model = OpenAIChatModel(session, peer.url, "sk-test", "test-model")
        stream = aiter(model.stream([user("25*47?")], [], ModelOptions()))
        assert await anext(stream) == TextDelta("11")
        assert peer.answered == 0
        assert [delta async for delta in stream][-1] == Finish("stop")


async def test_the_request_carries_key_headers_model_and_messages(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says("ok"), api_key="sk-test") as peer:
        model = OpenAIChatModel(session, f"{peer.url}/", "sk-test", "test-model", headers={"X-Job-Title": "analyst"})
        assert model.name == "test-model"
        assert [delta async for delta in model.stream([user("hi")], [], ModelOptions(temperature=0.1))]
    (request,) = peer.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-job-title"] == "analyst"
    assert request.body == {
        "model": "test-model", "messages": [{"role": "user", "content": "hi"}], "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0.1,
    }  # fmt: skip


async def test_azure_gets_its_key_header_and_api_version(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says("ok"), framing=Framing(filter_chunk_first=True)) as peer:
        model = OpenAIChatModel(session, f"{peer.endpoint}/openai/deployments/gpt-4o", "k", "gpt-4o", profile=AZURE)
        assert [delta async for delta in model.stream([user("hi")], [], ModelOptions())]
    (request,) = peer.requests
    assert (request.headers["api-key"], request.query) == ("k", {"api-version": "2024-10-21"})
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("base_url", "version", "url"),
    [
        ("http://h/v1", None, "http://h/v1/chat/completions"),
        ("http://h/v1/", None, "http://h/v1/chat/completions"),
        ("http://h/d?api-version=1", "2", "http://h/d/chat/completions?api-version=1"),
        ("http://h/d?a=b", "2", "http://h/d/chat/completions?a=b&api-version=2"),
        ("http://h/d", "2", "http://h/d/chat/completions?api-version=2"),
        ("http://h/openai/v1", "2", "http://h/openai/v1/chat/completions"),
    ],
)
def test_the_completions_address_keeps_a_query(base_url: str, version: str | None, url: str) -> None:
    assert completions_url(base_url, version) == url


CHUNKS = {
    "reasoning_content": ({"reasoning_content": "hm"}, ReasoningDelta("hm")),
    "reasoning": ({"content": "", "reasoning": "hm"}, ReasoningDelta("hm")),
    "refusal": ({"content": None, "refusal": "I cannot"}, TextDelta("I cannot")),
    "content parts": ({"content": [{"type": "text", "text": "a"}, {"type": "thinking"}]}, TextDelta("a")),
}


@pytest.mark.parametrize(("delta", "expected"), CHUNKS.values(), ids=CHUNKS)
async def test_other_contents_of_a_delta_are_read(
    session: aiohttp.ClientSession, delta: dict[str, Any], expected: Delta
) -> None:
    chunk = json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]})
    async with openai_upstream(Answer((f"data: {chunk}\n\n".encode(),))) as peer:
        assert await deltas(session, peer) == [expected, Finish("stop")]


STOP = b'data: {"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}]}\n\n'
OPEN = b'data: {"choices": [{"delta": {"content": "ok"}, "finish_reason": null}]}\n\n'
FAILED = b'data: {"choices": [{"delta": {"content": "ok"}, "finish_reason": "error"}]}\n\n'
SAID = b'data: {"object": "error", "message": "too many tokens", "code": 400}\n\n'


@pytest.mark.parametrize("after", [HANG, RESET])
async def test_what_comes_after_the_end_is_ignored(session: aiohttp.ClientSession, after: Part) -> None:
    for parts in ((STOP, b"data: [DONE]\n\n", STOP, after), (STOP, b'data: {"usa')):
        async with openai_upstream(Answer(parts)) as peer:
            assert await deltas(session, peer) == [TextDelta("ok"), Finish("stop")]


ENDS = {
    "done without a finish reason": (OPEN + b"data: [DONE]\n\n", INTERRUPTED, None),
    "a failed finish": (FAILED + b"data: [DONE]\n\n", None, 500),
    "an error without its own field": (SAID, "400", 400),
    "a web page": (b"<html>\n\n<h1>Sign in</h1>\n\n</html>", MALFORMED, None),
    "other JSON": (b'{"models": []}', INTERRUPTED, None),
    "a list": (b"data: []\n\n", MALFORMED, None),
    "a delta of another shape": (b'data: {"choices": [{"delta": "ok"}]}\n\n', MALFORMED, None),
    "nothing": (b"", MALFORMED, None),
}


@pytest.mark.parametrize(("body", "code", "status"), ENDS.values(), ids=ENDS)
async def test_an_incomplete_answer_is_an_error(
    session: aiohttp.ClientSession, body: bytes, code: str | None, status: int | None
) -> None:
    async with openai_upstream(Answer((body,))) as peer:
        with pytest.raises(ProviderError) as caught:
            await deltas(session, peer)
    assert (caught.value.code, caught.value.status_code) == (code, status)


async def test_an_endless_event_is_an_error_and_ends_the_answer() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"data: xxxxxxxx"
        finally:
            closed.set()

    with pytest.raises(ProviderError, match="endless"):
        assert [delta async for delta in chat_deltas(endless(), event_limit=1000)]
    assert closed.is_set()


SIMILAR_CHUNKS = [
    b'{"choices":[{%b}]}' % choice
    for choice in (
        b'"delta":{"content":"one"}',
        b'"delta":{"content":"two \\"quoted\\"}, \\u00e9 \xc3\xa9"}',
        b'"delta":{"content":""}',
        b'"delta":{"content":null}',
        b'"delta":{"content":"one","content":"other"}',
        b'"delta":{"content":"one","reasoning_content":"one"}',
        b'"delta":{"content":[{"type":"text","text":"one"}]}',
        b'"delta":{"content":{"content":"one"}}',
        b'"delta":{"content":null,"refusal":"one"}',
        b'"delta":{"content":"one"},"finish_reason":"length"',
        b'"logprobs":{"content":"one"},"delta":{"content":"one"}',
        b'"logprobs":{"content":"two"},"delta":{"content":"one"}',
        b'"logprobs":{"content":"one"},"delta":{"content":"two"}',
        b'"message":{"content":"one"},"delta":{}',
        b'"message":{"content":"one"},"delta":{"content":"two"}',
        b'"delta":{"content":one}',
        b'"delta":{"content":}',
        b'"delta":{"content":"one"',
    )
]


async def deltas_of(*chunks: bytes, at_once: bool = False) -> list[Delta | str | None]:
    """The deltas of an answer of these chunks, which come one by one or at once; a failure ends them with its code."""
    ended = (*chunks, b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', b"[DONE]")

    async def pieces() -> AsyncGenerator[bytes]:
        events = [b"data: %b\n\n" % chunk for chunk in ended]
        for piece in [b"".join(events)] if at_once else events:
            yield piece

    found: list[Delta | str | None] = []
    try:
        async for delta in chat_deltas(pieces()):
            found += [delta]
    except ProviderError as error:
        found.append(error.code)
    return found


async def test_a_chunk_is_read_as_if_it_were_alone_whatever_came_before() -> None:
    alone = {chunk: await deltas_of(chunk) for chunk in SIMILAR_CHUNKS}
    for first, second in product(SIMILAR_CHUNKS, repeat=2):
        before = alone[first] if alone[first][-1] == MALFORMED else [*alone[first][:-1] * 2, *alone[second]]
        assert await deltas_of(first, first, second) == before, (first, second)


async def test_the_first_word_is_a_delta_of_its_own_and_what_comes_with_it_one_more() -> None:
    chunks = [b'{"choices":[{"delta":{"content":"%b"}}]}' % word for word in (b"one", b"two", b"three")]
    deltas = await deltas_of(*chunks, at_once=True)
    assert deltas == [TextDelta("one"), TextDelta("twothree"), Finish("stop")]


@pytest.mark.parametrize(
    "address", ["localhost:8080/v1", "example", "http:///v1", "http://127.0.0.1:99999/v1", "ftp://h"]
)
async def test_an_invalid_address_is_reported_as_such(session: aiohttp.ClientSession, address: str) -> None:
    model = OpenAIChatModel(session, address, "sk-test", "m")
    with pytest.raises(ProviderError, match="address, key or a header is not valid"):
        assert [delta async for delta in model.stream([user("hi")], [], ModelOptions())]


async def test_a_key_with_a_line_end_is_not_sent(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says("never")) as peer:
        model = OpenAIChatModel(session, peer.url, "sk-test\r\nX-Evil: 1", "m")
        with pytest.raises(ProviderError, match="address, key or a header is not valid"):
            assert [delta async for delta in model.stream([user("hi")], [], ModelOptions())]
    assert peer.requests == []


async def test_the_deployment_is_called_at_its_address_with_key_and_headers(session: aiohttp.ClientSession) -> None:
    headers = {"X-CONVERSATION-ID": "conversations%2Fb%2Fx", "traceparent": "00-1-2-01"}
    async with openai_upstream(says("1175"), api_key="per-request-key") as peer:
        model = DialChatModel(session, f"{peer.endpoint}/", "gpt-4o", "per-request-key", headers, "2024-02-01")
        assert model.name == "gpt-4o"
        answer = [delta async for delta in model.stream([user("25*47?")], [], ModelOptions())]
    assert answer[0] == TextDelta("1175")
    (request,) = peer.requests
    assert (request.path, request.query) == (
        "/openai/deployments/gpt-4o/chat/completions", {"api-version": "2024-02-01"}
    )  # fmt: skip
    assert request.headers["api-key"] == "per-request-key"
    assert request.headers["x-conversation-id"] == "conversations%2Fb%2Fx"
    assert request.headers["traceparent"] == "00-1-2-01"
    assert request.body["model"] == "gpt-4o"


async def test_a_deployment_in_a_bucket_keeps_its_slashes_and_escapes_the_rest(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says("ok")) as peer:
        model = DialChatModel(session, peer.endpoint, "applications/b1/my agent?", "k")
        assert [delta async for delta in model.stream([user("hi")], [], ModelOptions())]
    assert peer.requests[0].path == "/openai/deployments/applications/b1/my agent?/chat/completions"
    assert peer.requests[0].query == {}


async def test_attachments_of_the_answer_become_deltas(session: aiohttp.ClientSession) -> None:
    item = {"index": 0, "type": "image/png", "title": "A cat", "url": "files/b/cat.png", "data": None, "foreign": 1}
    delta = {"content": "Here", "custom_content": {"attachments": [item], "stages": [{"index": 0, "name": "x"}]}}
    chunk = json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]})
    async with openai_upstream(Answer((f"data: {chunk}\n\ndata: [DONE]\n\n".encode(),))) as peer:
        model = DialChatModel(session, peer.endpoint, "dall-e-3", "k")
        answer = [delta async for delta in model.stream([user("a cat")], [], ModelOptions())]
    attachment = Attachment(type="image/png", title="A cat", url="files/b/cat.png")
    more: Any = delta["custom_content"]
    assert answer == [TextDelta("Here"), FileDelta(attachment), DialDelta(more), Finish("stop")]
