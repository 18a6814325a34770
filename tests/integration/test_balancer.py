"""compose/balancer.conf under a real HAProxy: two agents divide the requests, and one of them may be away or frozen."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
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
FEW_SECONDS = {"timeout server 45s": "timeout server 2s"}


class Agent:
    """Answers in two pieces, the second once it may, or breaks the connection after it has received a request."""

    def __init__(self) -> None:
        self.requests = 0
        self.breaks = False
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.is_awake = asyncio.Event()
        self.is_awake.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        await self.is_awake.wait()
        if self.breaks and request.transport:
            request.transport.abort()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first ")
        await self.may_end.wait()
        await response.write(b"second")
        return response

    async def alive(self, _: web.Request) -> web.Response:
        """While it is frozen nothing comes, as from a process that is stopped."""
        await self.is_awake.wait()
        return web.Response()

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/health", self.alive), web.route("*", "/{path:.*}", self.answer)])
        return app


class Frozen:
    """An agent that is stopped: its kernel accepts connections and what is sent, and nobody answers."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def received(self) -> list[bytes]:
        """The first line of each request; to be called once, after HAProxy has given them up."""
        found = list[bytes]()
        self._listening.setblocking(False)
        while True:
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return found
            with connection:
                connection.settimeout(25)
                found.append(connection.recv(65536).partition(b"\r\n")[0])
                if found[-1].startswith((b"GET /health ", b"OPTIONS ")) or not found[-1]:
                    found.pop()


@contextmanager
def frozen() -> Generator[Frozen]:
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        yield Frozen(listening)


@asynccontextmanager
async def balanced(
    folder: Path, *agents: str, changes: Mapping[str, str] | None = None
) -> AsyncGenerator[aiohttp.ClientSession]:
    """Requests to HAProxy in front of the agents at these addresses."""
    port = free_port()
    async with (
        balancer(folder, port, *agents, changes=changes),
        aiohttp.ClientSession(
            f"http://127.0.0.1:{port}", timeout=WAIT, connector=aiohttp.TCPConnector(limit=0)
        ) as session,
    ):
        yield session


async def test_two_agents_share_hundreds_of_answers_that_stream_at_once(tmp_path: Path) -> None:
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
        assert [await answer.content.readexactly(6) for answer in answers] == [b"first "] * MANY
        assert (one.requests, two.requests) == (MANY / 2, MANY / 2)
        one.may_end.set()
        two.may_end.set()
        assert [await answer.read() for answer in answers] == [b"second"] * MANY


@pytest.mark.fault("compose: one of two agents is away, or breaks a request off")
async def test_an_agent_that_is_away_is_left_out(tmp_path: Path) -> None:
    one = Agent()
    away = f"http://127.0.0.1:{free_port()}"
    async with served(one.application()) as first, balanced(tmp_path, first, away) as caller:
        for _ in range(6):
            async with caller.post("/v1/chat/completions", json={}) as answer:
                assert (answer.status, await answer.read()) == (200, b"first second")
    assert one.requests == 6


@pytest.mark.fault("compose: one of two agents is away, or breaks a request off")
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


@pytest.mark.fault("compose: an agent behind the balancer that is frozen, before or while it answers")
async def test_who_follows_a_run_is_led_from_a_frozen_agent_to_the_other(tmp_path: Path) -> None:
    one = Agent()
    with frozen() as other:
        async with (
            served(one.application()) as first,
            balanced(tmp_path, first, other.url, changes=FEW_SECONDS) as caller,
        ):
            for _ in range(4):
                async with caller.get("/runs/run_1/events") as answer:
                    assert (answer.status, await answer.read()) == (200, b"first second")
        assert one.requests == 4
        assert set(other.received()) == {b"GET /runs/run_1/events HTTP/1.1"}


@pytest.mark.fault("compose: an agent behind the balancer that is frozen, before or while it answers")
async def test_who_follows_a_run_of_an_agent_that_freezes_meanwhile_can_soon_ask_again(tmp_path: Path) -> None:
    one, two = Agent(), Agent()
    async with (
        served(one.application()) as first,
        served(two.application()) as second,
        balanced(tmp_path, first, second, changes=FEW_SECONDS) as caller,
    ):
        one.may_end.clear()
        two.may_end.clear()
        async with caller.get("/runs/run_1/events") as answer:
            with pytest.raises(aiohttp.ClientPayloadError):  # its own patience is 25 s
                await answer.read()
        async with caller.post("/v1/chat/completions", json={}) as quiet:  # a model may think for longer
            assert await quiet.content.readexactly(6) == b"first "
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(quiet.content.read(1), 4)
            one.may_end.set()
            two.may_end.set()


@pytest.mark.fault("compose: an agent behind the balancer that is frozen, before or while it answers")
async def test_a_frozen_agent_is_left_out_and_who_may_repeat_a_request_is_told_at_once(tmp_path: Path) -> None:
    one, two = Agent(), Agent()
    async with (
        served(one.application()) as first,
        served(two.application()) as second,
        balanced(tmp_path, first, second) as caller,
    ):

        async def asked(**headers: str) -> int:
            async with caller.post("/v1/chat/completions", json={}, headers=headers) as answer:
                return answer.status if await answer.read() == b"first second" else 0

        one.is_awake.clear()
        held = [asyncio.create_task(asked()) for _ in range(2)]
        assert sorted(await asyncio.gather(*(asked(**{"Idempotency-Key": str(key)}) for key in range(2)))) != [200, 200]
        before = one.requests
        assert [await asked() for _ in range(6)] == [200] * 6
        assert one.requests == before
        assert sum(waiting.done() for waiting in held) == 1
        one.is_awake.set()
        assert await asyncio.gather(*held) == [200, 200]
