"""Requests to providers: when they are retried, when a connection is reused, and how a failure is reported."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import pytest

from task.errors import ProviderError
from task.llm.failures import CONNECTION_FAILED, CONTEXT_LENGTH, INTERRUPTED, http_failure, retry_after, stream_failure
from task.llm.scripted import says
from task.llm.transport import Retries, answer_bytes, new_session
from tests.support.clock import FakeClock
from tests.support.upstream import (
    RESET,
    Answer,
    Upstream,
    broken_off,
    hanging,
    html_error,
    http_error,
    openai_upstream,
    plain_error,
)  # fmt: skip

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}'


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


Post = tuple[str, bytes, dict[str, str]]


def post(peer: Upstream, body: bytes = BODY) -> Post:
    return f"{peer.url}/chat/completions", body, {"Authorization": "Bearer sk-test"}


async def answer(session: aiohttp.ClientSession, request: Post, clock: FakeClock | None = None) -> bytes:
    retries = Retries(sleep=(clock or FakeClock(runs=True)).sleep, jitter=lambda: 1.0)
    return b"".join([piece async for piece in answer_bytes(session, *request, retries)])


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_temporary_failures_are_retried(session: aiohttp.ClientSession, status: int) -> None:
    clock = FakeClock(runs=True)
    async with openai_upstream(http_error(status), http_error(status), says("1175")) as peer:
        assert b"1175" in await answer(session, post(peer), clock)
    assert len(peer.requests) == 3
    assert clock.slept == [0.5, 1.0]


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422])
async def test_refusals_are_final(session: aiohttp.ClientSession, status: int) -> None:
    async with openai_upstream(http_error(status, "no", code="why"), says("never")) as peer:
        with pytest.raises(ProviderError) as caught:
            await answer(session, post(peer))
    assert (caught.value.status_code, caught.value.code, len(peer.requests)) == (status, "why", 1)


@pytest.mark.parametrize(
    ("answers", "attribute", "value"),
    [
        pytest.param([html_error(502), plain_error(503, "busy"), http_error(500)], "status_code", 500, id="third"),
        pytest.param([http_error(429, code="insufficient_quota")], "status_code", 429, id="exhausted quota"),
        pytest.param([http_error(429, retry_after=3600)], "retry_after", 3600, id="retry after beyond patience"),
        pytest.param([broken_off(says("1175"), chunks=2)], "code", INTERRUPTED, id="lost after the first byte"),
    ],
)
async def test_a_failure_that_is_not_temporary_is_final(
    session: aiohttp.ClientSession, answers: list[Answer], attribute: str, value: object
) -> None:
    async with openai_upstream(*answers, says("never")) as peer:
        with pytest.raises(ProviderError) as caught:
            await answer(session, post(peer))
    assert (getattr(caught.value, attribute), len(peer.requests)) == (value, len(answers))


async def test_retry_after_is_honoured(session: aiohttp.ClientSession) -> None:
    clock = FakeClock(runs=True)
    async with openai_upstream(http_error(429, retry_after=7), says("1175")) as peer:
        assert b"1175" in await answer(session, post(peer), clock)
    assert clock.slept == [7.0]


async def test_a_connection_lost_before_the_first_byte_is_retried(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(Answer((RESET,)), broken_off(says("x"), chunks=0), says("1175")) as peer:
        assert b"1175" in await answer(session, post(peer))
    assert len(peer.requests) == 3


async def test_a_refused_connection_is_a_connection_failure(session: aiohttp.ClientSession) -> None:
    async with openai_upstream() as peer:
        gone = post(peer)
    clock = FakeClock(runs=True)
    with pytest.raises(ProviderError) as caught:
        await answer(session, gone, clock)
    assert (caught.value.code, caught.value.status_code, len(clock.slept)) == (CONNECTION_FAILED, None, 2)
    assert "127.0.0.1" not in str(caught.value)


async def test_answers_and_errors_leave_the_connection_for_the_next_request(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says("1"), http_error(429), says("2"), says("3")) as peer:
        for _ in range(3):
            await answer(session, post(peer))
    assert peer.connections == 1


async def test_more_than_a_hundred_answers_run_at_once(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(then=hanging(says("1175"), chunks=1)) as peer, asyncio.TaskGroup() as group:
        running = [group.create_task(answer(session, post(peer))) for _ in range(150)]
        await peer.received(150)
        for task in running:
            task.cancel()


async def test_a_body_of_megabytes_arrives_whole(session: aiohttp.ClientSession) -> None:
    text = "x" * 3_000_000
    async with openai_upstream(says("1175")) as peer:
        await answer(session, post(peer, BODY.replace(b"hi", text.encode())))
    assert peer.requests[0].last["content"] == text


async def test_a_redirect_does_not_get_the_key(session: aiohttp.ClientSession) -> None:
    async with openai_upstream() as other:
        redirect = Answer(status=307, headers={"Location": f"{other.url}/chat/completions"})
        async with openai_upstream(redirect) as peer:
            with pytest.raises(ProviderError) as caught:
                await answer(session, post(peer))
    assert (caught.value.status_code, other.requests) == (307, [])


NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"Access denied to the file files/b/x.csv", "Access denied to the file files/b/x.csv"),
        (
            b"<html><head><style>p{}</style></head><body><h1>502  Bad</h1><p>gateway</p></body></html>",
            "502 Bad gateway",
        ),
        (b'[{"error": {"message": "Unknown name", "status": "INVALID_ARGUMENT"}}]', "Unknown name"),
        (b'{"error": "model not found"}', "model not found"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc":["body"]}]'),
        (b'"just text"', '"just text"'),
        (b"\xff\xfe not utf-8", "\ufffd\ufffd not utf-8"),
        (b"", ""),
    ],
)
def test_other_bodies_are_read_leniently(body: bytes, text: str) -> None:
    error = http_failure(400, body, {}, ())
    assert error.text == text
    assert str(error) == "The model provider refused the request (HTTP 400)."


@pytest.mark.parametrize(
    "error",
    [
        {"message": "x", "code": "context_length_exceeded"},
        {"message": "x", "type": "context_length_exceeded", "code": "400"},
        {"message": "This model's maximum context length is 4096 tokens.", "code": 400},
        {"message": "prompt is too long: 210000 tokens > 200000 maximum", "type": "invalid_request_error"},
        {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed"},
        {"message": "the request exceeds the available context size"},
    ],
)
def test_a_conversation_that_is_too_long_is_recognised(error: dict[str, str]) -> None:
    failure = http_failure(400, json.dumps({"error": error}).encode(), {}, ())
    assert failure.code == CONTEXT_LENGTH
    assert str(failure) == "The conversation is too long for the model (HTTP 400)."


def test_no_key_gets_into_an_error() -> None:
    body = {
        "error": {"message": "Incorrect API key provided: sk-ab***yz. dial-key-1 is wrong", "code": "invalid_api_key"}
    }
    error = http_failure(401, json.dumps(body).encode(), {}, ["dial-key-1"])
    assert error.text == "Incorrect API key provided: *** *** is wrong"
    assert str(error) == "The model provider refused the request (HTTP 401)."


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"message": "boom"}, 500),
        ({"message": "slow down", "code": "429"}, 429),
        ({"message": "overloaded", "status": 503}, 503),
        ({"message": "boom", "code": "server_error"}, 500),
        ("just words", 500),
    ],
)
def test_an_error_in_a_stream_is_a_500_unless_it_names_another(error: object, status: int) -> None:
    assert stream_failure(error).status_code == status


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("12", 12.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Mon, 04 May 2026 12:00:30 GMT", 30.0),
        ("Mon, 04 May 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("inf", None),
        ("", None),
    ],
)
def test_retry_after_contains_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": value}, NOW) == seconds
