"""Per-request keys: what they are, how long they live, what nested calls inherit."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import answers, application, ask, calling, config, peer

pytestmark = pytest.mark.local_core


async def status_of(core: RunningCore, key: str, path: str = "/v1/bucket") -> int:
    async with calling(core, key) as session, session.get(path) as answer:
        return answer.status


async def test_13_7_a_key_works_until_the_response_ends(tmp_path: Path) -> None:
    during: list[int] = []

    async def uses_its_key(request: web.Request) -> web.Response:
        during.append(await status_of(core, request.headers["Api-Key"]))
        return web.json_response({})

    async with application(uses_its_key, tmp_path) as (app, core, session):
        await ask(session)
        assert during == [200]
        assert await status_of(core, app.last.key) == 401


@pytest.mark.parametrize(("core025", "after"), [(False, 401), (True, 200)])
async def test_13_7_a_key_expires_within_a_stream(tmp_path: Path, core025: bool, after: int) -> None:
    found: list[int] = []
    now = [0.0]

    async def outlives_its_key(request: web.Request) -> web.Response:
        for seconds in (199, 2):
            now[0] += seconds
            found.append(await status_of(core, request.headers["Api-Key"]))
        return web.json_response({})

    switches: dict[str, Any] = {"core025": core025, "key_seconds": 200.0, "clock": lambda: now[0]}
    async with application(outlives_its_key, tmp_path, **switches) as (_, core, session):
        await ask(session)
    assert found == [200, after]


async def test_keys_are_32_characters_and_new_for_every_call(tmp_path: Path) -> None:
    async with application(answers(), tmp_path) as (app, _, session):
        for _ in range(5):
            await ask(session)
    keys = {seen.key for seen in app.requests}
    assert len(keys) == 5
    assert all(re.fullmatch(r"[0-9A-Za-z_-]{32}", key) for key in keys)


async def test_a_nested_call_has_a_key_of_its_own_and_keeps_the_root_caller(tmp_path: Path) -> None:
    async def reports_its_user(request: web.Request) -> web.Response:
        key = request.headers["Api-Key"]
        async with calling(core, key) as session, session.get("/v1/user/info") as user:
            return web.json_response(await user.json())

    async def calls_inner(request: web.Request) -> web.Response:
        async with calling(core, request.headers["Api-Key"]) as session:
            answer = await ask(session, "inner")
        return web.json_response([await status_of(core, inner.last.key), answer.json])

    async with (
        peer(reports_its_user) as inner,
        peer(calls_inner) as outer,
        local_core(config({"inner": inner.url, "outer": outer.url}), tmp_path) as core,
        calling(core) as session,
    ):
        answer = await ask(session, "outer")
    assert answer.json == [401, {"roles": ["basic"], "project": "One"}]
    assert inner.last.key != outer.last.key


async def test_parallel_calls_of_one_application_do_not_share_rights(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    async def tries_everything(request: web.Request) -> web.Response:
        async with asyncio.timeout(5):
            await both.wait()
        key = request.headers["Api-Key"]
        return web.json_response({name: await status_of(core, key, f"/v1/{url}") for name, url in urls.items()})

    async with (
        application(tries_everything, tmp_path) as (_, core, _),
        CoreFiles.of(core.url, "key-one") as one,
        CoreFiles.of(core.url, "key-two") as two,
    ):
        await one.put("a.csv")
        await two.put("b.csv")
        urls = {"key-one": one.url("a.csv"), "key-two": two.url("b.csv")}

        async def attach(caller: str) -> Any:
            content = {"attachments": [{"url": urls[caller]}]}
            async with calling(core, caller) as session:
                body = {"messages": [{"role": "user", "content": "", "custom_content": content}]}
                return (await ask(session, body=body)).json

        first, second = await asyncio.gather(attach("key-one"), attach("key-two"))
    assert first == {"key-one": 200, "key-two": 403}
    assert second == {"key-one": 403, "key-two": 200}
