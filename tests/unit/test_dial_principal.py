"""Who is behind a key: asked once, in time, and again where a server fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from task.agent import FoldedChoice
from task.core_client.files import DialFiles
from task.errors import ToolError
from tests.support.choices import RecordingChoice
from tests.support.core import served


@asynccontextmanager
async def core(*answers: web.Response) -> AsyncGenerator[tuple[str, list[str]]]:
    """A Core that gives these answers in turn; and the keys it was asked with."""
    keys: list[str] = []

    async def bucket(request: web.Request) -> web.Response:
        keys.append(request.headers["Api-Key"])
        return answers[len(keys) - 1]

    app = web.Application()
    app.router.add_get("/v1/bucket", bucket)
    async with served(app) as url:
        yield url, keys


def home(bucket: str, appdata: str | None = None) -> web.Response:
    return web.json_response({"bucket": bucket, **({"appdata": appdata} if appdata else {})})


@pytest.mark.parametrize("answer", [home("user"), home("agent", "user/appdata/agent")], ids=["own-key", "request-key"])
async def test_the_principal_is_the_users_bucket(answer: web.Response) -> None:
    async with core(answer) as (url, keys), aiohttp.ClientSession() as session:
        assert await DialFiles(url, session=session).principal("k") == "user"
    assert keys == ["k"]


async def test_a_server_that_stumbles_is_asked_once_more() -> None:
    async with core(web.Response(status=503), home("user")) as (url, keys), aiohttp.ClientSession() as session:
        assert await DialFiles(url, session=session).principal("k") == "user"
    assert keys == ["k", "k"]


@pytest.mark.parametrize(("status", "times"), [(401, 1), (500, 2)])
async def test_a_refusal_is_not_retried_and_a_failing_server_only_once(status: int, times: int) -> None:
    answers = [web.Response(status=status) for _ in range(times)]
    async with core(*answers) as (url, keys), aiohttp.ClientSession() as session:
        with pytest.raises(ToolError):
            await DialFiles(url, session=session).principal("k")
    assert len(keys) == times


async def test_the_key_does_not_follow_to_another_host() -> None:
    async with core(home("another")) as (other, keys):
        away = web.Response(status=302, headers={"Location": f"{other}/v1/bucket"})
        async with core(away) as (url, _), aiohttp.ClientSession() as session:
            with pytest.raises(ToolError, match="could not be understood"):
                await DialFiles(url, session=session).principal("k")
    assert keys == []


async def test_the_first_stage_asks_who_the_caller_is_and_no_other_does() -> None:
    asked: list[None] = []

    async def principal() -> str:
        asked.append(None)
        return "bucket"

    choice = FoldedChoice(RecordingChoice(), principal)
    choice.append_content("Hello.")
    await asyncio.sleep(0)
    counts = [len(asked)]
    for _ in range(3):
        choice.create_stage("Tool")
        await asyncio.sleep(0)
        counts.append(len(asked))
    assert counts == [0, 1, 1, 1]
