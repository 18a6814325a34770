"""Requests are retried only before the answer's first byte, and a connection is reused only after the answer's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import aiohttp
import pytest

from task.errors import ProviderError
from task.llm.failures import CONNECTION_FAILED, INTERRUPTED, TIMEOUT
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
    never_answering,
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


async def test_silence_becomes_an_error_and_is_not_retried() -> None:
    async with (
        openai_upstream(never_answering(), hanging(says("1175"), chunks=2)) as peer,
        new_session(0.05) as session,
    ):
        for _ in range(2):
            with pytest.raises(ProviderError, match="silent") as caught:
                await answer(session, post(peer))
            assert caught.value.code == TIMEOUT
    assert len(peer.requests) == 2


async def test_cancelling_closes_the_connection_at_once(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(never_answering(), hanging(says("1175"), chunks=2)) as peer:
        for number in (1, 2):
            task = asyncio.create_task(answer(session, post(peer)))
            await peer.received(number)
            task.cancel()
            await peer.disconnected(number, within=1.0)
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_closing_the_answer_early_closes_the_connection(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(hanging(says("1175"), chunks=2)) as peer:
        async with aclosing(answer_bytes(session, *post(peer), Retries())) as pieces:
            await anext(pieces)
        await peer.disconnected(1, within=1.0)


async def test_complete_answers_and_errors_leave_the_connection_for_the_next_request(
    session: aiohttp.ClientSession,
) -> None:
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
