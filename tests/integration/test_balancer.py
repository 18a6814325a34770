"""compose/balancer.conf under a real nginx: two agents divide the requests, and one of them may be away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.support.balancer import balancer
from tests.support.core import served
from tests.support.ports import free_port

pytestmark = pytest.mark.system
WAIT = aiohttp.ClientTimeout(25)
MANY = 400  # answers


class Agent:
    """Answers in two pieces, the second once it may, or breaks the connection after it has received a request."""

    def __init__(self) -> None:
        self.requests = 0
        self.breaks = False
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if self.breaks and request.transport:
            request.transport.abort()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first ")
        await self.may_end.wait()
        await response.write(b"second")
        return response

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.route("*", "/{path:.*}", self.answer)])
        return app


@asynccontextmanager
async def balanced(folder: Path, *agents: str) -> AsyncGenerator[aiohttp.ClientSession]:
    """Requests to nginx in front of the agents at these addresses."""
    port = free_port()
    async with (
        balancer(folder, port, *agents),
        aiohttp.ClientSession(
            f"http://127.0.0.1:{port}", timeout=WAIT, connector=aiohttp.TCPConnector(limit=0)
        ) as session,
    ):
        yield session


async def test_two_agents_share_the_requests_and_answers_are_streamed(tmp_path: Path) -> None:
    one, two = Agent(), Agent()
    async with (
        served(one.application()) as first,
        served(two.application()) as second,
        balanced(tmp_path, first, second) as caller,
    ):
        one.may_end.clear()
        two.may_end.clear()
        answers = [await caller.post("/v1/chat/completions", json={}) for _ in range(4)]
        assert [await answer.content.readexactly(6) for answer in answers] == [b"first "] * 4
        assert (one.requests, two.requests) == (2, 2)
        one.may_end.set()
        two.may_end.set()
        assert [await answer.read() for answer in answers] == [b"second"] * 4


async def test_hundreds_of_answers_stream_at_once(tmp_path: Path) -> None:
    one, two = Agent(), Agent()
    async with (
        served(one.application()) as first,
        served(two.application()) as second,
        balanced(tmp_path, first, second) as caller,
    ):
        one.may_end.clear()
        two.may_end.clear()
        answers = await asyncio.gather(*(caller.post("/v1/chat/completions", json={}) for _ in range(MANY)))
        assert {answer.status for answer in answers} == {200}
        assert (one.requests, two.requests) == (MANY / 2, MANY / 2)
        one.may_end.set()
        two.may_end.set()
        assert [await answer.read() for answer in answers] == [b"first second"] * MANY


async def test_an_agent_that_is_away_is_left_out(tmp_path: Path) -> None:
    one = Agent()
    away = f"http://127.0.0.1:{free_port()}"
    async with served(one.application()) as first, balanced(tmp_path, first, away) as caller:
        for _ in range(6):
            async with caller.post("/v1/chat/completions", json={}) as answer:
                assert (answer.status, await answer.read()) == (200, b"first second")
    assert one.requests == 6


async def test_a_request_that_an_agent_has_received_is_never_sent_to_the_other(tmp_path: Path) -> None:
    one, two = Agent(), Agent()
    one.breaks = two.breaks = True
    async with (
        served(one.application()) as first,
        served(two.application()) as second,
        balanced(tmp_path, first, second) as caller,
        caller.post("/v1/chat/completions", json={}) as answer,
    ):
        assert answer.status == 502
    assert one.requests + two.requests == 1
