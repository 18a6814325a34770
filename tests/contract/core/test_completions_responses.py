"""How an application's response reaches the caller: at once, unchanged, or not at all."""

import asyncio
import time
from pathlib import Path

import pytest
from aiohttp import ClientPayloadError, web

from tests.support.core import local_core
from tests.support.core_peers import DONE, answers, application, ask, calling, chunk, completion, config, streams

HEARTBEAT = b": heartbeat\n\n"

pytestmark = pytest.mark.local_core


async def test_13_5_ten_chunks_and_heartbeats_arrive_unchanged_and_spread_over_time(tmp_path: Path) -> None:
    parts = [HEARTBEAT, *(chunk({"content": str(number)}) for number in range(10))]
    async with (
        application(streams(*parts, DONE, seconds=0.03), tmp_path) as (_, _, session),
        completion(session) as answer,
    ):
        times: list[float] = []
        received = b""
        async for data in answer.content.iter_any():
            times.append(time.monotonic())
            received += data
    assert received == b"".join([*parts, DONE])
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert len(times) >= 10
    assert times[-1] - times[0] > 0.2


async def test_13_6_a_client_that_disconnects_cancels_the_application(tmp_path: Path) -> None:
    async with application(streams(*[chunk({"content": "a"})] * 1000, seconds=0.05), tmp_path) as (app, core, session):
        async with completion(session) as answer:
            await answer.content.readany()
            answer.close()
        async with asyncio.timeout(10):
            await app.cancelled.wait()
        async with calling(core, app.last.key) as dead, dead.get("/v1/bucket") as refused:
            assert (refused.status, await refused.text()) == (401, "Unknown api key")


@pytest.mark.parametrize(
    ("status", "seen", "text"),
    [
        (429, 503, "Service is not available"),
        (502, 502, "No route"),
        (503, 502, "No route"),
        (504, 502, "No route"),
        (400, 400, None),
        (404, 404, None),
        (500, 500, None),
    ],
)
async def test_13_8_statuses_are_mapped(tmp_path: Path, status: int, seen: int, text: str | None) -> None:
    error = {"error": {"message": "the application's own words"}}
    async with application(answers(status, error, Retry_After="9"), tmp_path) as (_, _, session):
        for answer in (await ask(session), await ask(session)):
            assert answer.status == seen
            assert answer.text == text if text is not None else answer.json == error
            assert answer.headers.get("Retry-After") == ("9" if text is None or status == 429 else None)


@pytest.mark.parametrize(
    ("status", "first", "then"), [(400, 400, 502), (404, 404, 502), (429, 503, 502), (500, 500, 500), (200, 200, 200)]
)
async def test_13_8_core_025_blocks_an_application_for_30_seconds_after_a_4xx(
    tmp_path: Path, status: int, first: int, then: int
) -> None:
    now = [0.0]
    async with (
        application(answers(status), tmp_path, version=25, clock=lambda: now[0]) as (_, core, session),
        calling(core, "key-two") as second,
    ):
        assert (await ask(session)).status == first
        assert (await ask(second)).status == then
        now[0] += 31
        assert (await ask(second)).status == first


async def test_13_8_an_application_that_is_down_is_502(tmp_path: Path) -> None:
    async with local_core(config({"app": "http://127.0.0.1:9/"}), tmp_path) as core, calling(core) as session:
        answer = await ask(session)
    assert (answer.status, answer.json["error"]["message"]) == (502, "Failed to connect to origin")


@pytest.mark.parametrize("started", [False, True])
async def test_13_8_an_interrupted_response_does_not_look_complete(tmp_path: Path, started: bool) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if started:
            await response.prepare(request)
            await response.write(chunk({"content": "half"}))
        assert request.transport is not None
        request.transport.close()
        return response

    async with application(breaks, tmp_path) as (app, core, session):
        async with completion(session) as answer:
            if started:
                assert b"half" in await answer.content.readany()
                with pytest.raises(ClientPayloadError):
                    await answer.content.readany()
            else:
                assert (answer.status, await answer.text()) == (502, "No route")
        async with calling(core, app.last.key) as dead, dead.get("/v1/bucket") as refused:
            assert refused.status == 401


@pytest.mark.parametrize("started", [False, True])
async def test_13_21_an_idle_application_is_disconnected(tmp_path: Path, started: bool) -> None:
    async def idles(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if started:
            await response.prepare(request)
            await response.write(HEARTBEAT)
        await asyncio.Event().wait()
        return response

    async with application(idles, tmp_path, idle_seconds=0.5) as (app, _, session):
        if started:
            with pytest.raises(ClientPayloadError):
                await ask(session)
        else:
            assert (await ask(session)).status == 502
        async with asyncio.timeout(10):
            await app.cancelled.wait()
