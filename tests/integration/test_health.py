"""Health and readiness: what an orchestrator and an operator read."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from task.llm.scripted import says, wants
from task.product import opened
from task.product.health import NO_MODEL, NO_STORE, Health, Report
from task.settings import Settings
from tests.support.core import served
from tests.support.http_api import NOWHERE, http_api
from tests.support.ports import free_port


@asynccontextmanager
async def looking(now: list[float], tmp_path: Path, **settings: Any) -> AsyncGenerator[Health]:
    given = {"backend": "openai", "openai_base_url": f"{NOWHERE}/v1", "data_dir": tmp_path, **settings}
    services, profile = opened(Settings.model_validate(given))
    try:
        yield Health(services, profile, lambda: now[0])
    finally:
        await services.close()


@pytest.mark.fault("observability: a model's server, a store or a server of tools that is down, at the readiness probe")
async def test_without_its_model_the_agent_lives_but_is_not_ready_and_says_why(tmp_path: Path) -> None:
    dead = {"name": "dead", "url": f"http://127.0.0.1:{free_port()}/mcp"}
    async with http_api(tmp_path=tmp_path, openai_base_url=f"{NOWHERE}/v1", mcp_servers=[dead]) as api:
        reply = await api.get("/ready")
        assert (await api.get("/health")).status == 200
        assert (await api.call("HEAD", "/health")).status == 200  # as balancers ask
        tools = await api.get("/health/tools")
    assert (reply.status, reply.json["status"], reply.json["reasons"]) == (503, "not ready", [NO_MODEL])
    assert reply.json["degraded"][0].startswith("dead: ")
    assert [issue["server"] for issue in tools.json["issues"]] == ["dead"]
    assert "127.0.0.1" not in reply.text


@pytest.mark.fault("observability: a model's server, a store or a server of tools that is down, at the readiness probe")
async def test_a_store_that_cannot_be_used_is_a_reason_and_a_look_is_kept_for_seconds(tmp_path: Path) -> None:
    (tmp_path / "no-database").write_text("words " * 1000, encoding="utf-8")
    now = [0.0]
    async with looking(now, tmp_path, store={"url": f"sqlite:///{tmp_path / 'no-database'}"}) as health:
        assert (await health.report()).reasons == (NO_MODEL, NO_STORE)
        health._last = Report(("kept",), (), ())
        assert (await health.report()).reasons == ("kept",)
        now[0] = 5.0
        assert (await health.report()).reasons == (NO_MODEL, NO_STORE)


@pytest.mark.fault("observability: a model's server, a store or a server of tools that is down, at the readiness probe")
async def test_a_failing_server_of_tools_is_asked_every_few_seconds_however_often_readiness_is(tmp_path: Path) -> None:
    requests, now = [0], [0.0]

    async def failing(_: web.Request) -> web.Response:
        requests[0] += 1
        return web.Response(status=500)

    application = web.Application()
    application.router.add_route("*", "/mcp", failing)
    async with (
        served(application) as url,
        looking(now, tmp_path, mcp_servers=[{"name": "failing", "url": f"{url}/mcp"}]) as health,
    ):
        async with asyncio.timeout(25):  # on a slow machine the first look may be too late for its answer
            while "status 500" not in str(degraded := (await health.report()).degraded):
                now[0] += 5.0
        asked = requests[0]
        assert [(await health.report()).degraded for _ in range(5)] == [degraded] * 5
        assert requests[0] == asked > 0
        now[0] += 5.0
        await health.report()
        assert requests[0] > asked


async def test_the_tools_are_listed_with_their_calls_and_the_tokens_of_their_schemas(tmp_path: Path) -> None:
    answers = (wants("calculator", expression="1+1"), wants("calculator", expression="1+"), says("2"))
    async with http_api(*answers, tmp_path=tmp_path) as api:
        await api.complete("1+1?")
        found = (await api.get("/health/tools")).json
        assert (await api.get("/health/tools", headers={"host": "elsewhere.example"})).status == 403
    [calculator] = [tool for tool in found["tools"] if tool["name"] == "calculator"]
    assert (calculator["calls"], calculator["failed"]) == (2, 1)
    assert calculator["mean_seconds"] > 0
    assert 0 < calculator["schema_tokens"] < found["schema_tokens"]
