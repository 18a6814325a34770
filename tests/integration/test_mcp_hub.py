"""The hub: when tools are listed, what is cached, and how failing servers are reported."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from task.tools.mcp.hub import BACK_OFF, MCPHub, ServerSpec
from task.tools.mcp.mcp_tool_model import fit, model_name
from task.tools.models import Caller
from tests.support.clock import FakeClock
from tests.support.mcp_wire import hang, http_server, listed, raw_server

ROOT = Path(__file__).parents[2]


def caller(name: str = "ann") -> Caller:
    async def principal() -> str:
        return name

    return Caller(f"key-of-{name}", principal, "conversation", {"X-Tag": "1", "traceparent": "00-1"})


async def names(hub: MCPHub, who: Caller | None = None) -> list[str]:
    return [tool.name for tool in (await hub.discover(who or caller())).tools]


@pytest.mark.fault("mcp: a list of tools that changes")
async def test_a_list_is_kept_and_refreshed_behind_the_requests() -> None:
    offered, asked, clock = ["one"], list[dict[str, Any]](), FakeClock()
    async with raw_server({"tools/list": lambda _: listed(*offered)}, asked) as url:
        hub = MCPHub([ServerSpec("it", url)], clock=clock.now, fresh_seconds=60)
        assert await names(hub) == ["one"]
        offered.append("two")
        before = len(asked)
        assert await names(hub) == ["one"]
        assert len(asked) == before
        await clock.advance(61)
        assert await names(hub) == ["one"]  # the request that finds the list old does not wait for the new one
        async with asyncio.timeout(20):
            while await names(hub) != ["one", "two"]:
                await asyncio.sleep(0.01)
        await hub.close()


async def test_a_second_server_waits_until_the_import_for_the_first_one_is_complete() -> None:
    program = """
import asyncio, sys
from task.tools.mcp.connection import sdk_loaded

async def main():
    first = asyncio.create_task(sdk_loaded())
    while "mcp" not in sys.modules:
        await asyncio.sleep(0)
    await sdk_loaded()
    print(hasattr(sys.modules["mcp"], "Client"))
    await first

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 45)
    assert (process.returncode, printed.decode().strip()) == (0, "True")


@pytest.mark.fault("mcp: names that models may not use, and names that clash")
async def test_tools_of_one_name_are_kept_apart_and_an_alias_of_another_tool_is_not_a_servers_own_name() -> None:
    async with raw_server({"tools/list": lambda _: listed("web_search", "find")}) as url:
        hub = MCPHub([ServerSpec("intranet", url), ServerSpec("some", url)])
        assert await names(hub) == ["intranet_web_search", "find", "some_web_search", "some_find"]
        assert [tool.name for tool in await hub.tools_at(url)] == ["intranet_web_search", "find"]
        await hub.close()


@pytest.mark.fault("mcp: a server that hangs")
async def test_a_server_that_hangs_delays_one_request_and_no_more() -> None:
    asked: list[str] = []

    async def noted(request: web.Request) -> web.Response:
        asked.append(request.path)
        return await hang(request)

    clock = FakeClock()
    async with http_server(noted) as url:
        hub = MCPHub([ServerSpec("it", url)], clock=clock.now, patience=0.2)
        async with asyncio.timeout(20):
            first = await hub.discover(caller())
            waited_for = len(asked)
            second = await hub.discover(caller())
        assert len(asked) == waited_for
        await clock.advance(BACK_OFF + 1)
        await hub.close()
    assert [issue.server for issue in (*first.issues, *second.issues)] == ["it", "it"]


@pytest.mark.fault("mcp: somebody else's key")
async def test_a_trusted_server_lists_with_each_callers_own_key_and_others_see_the_trace_alone() -> None:
    asked, elsewhere = list[dict[str, Any]](), list[dict[str, Any]]()
    async with raw_server({"tools/list": listed("one")}, asked) as url:
        hub = MCPHub([ServerSpec("toolset", url, forward_key=True)])
        assert await names(hub, caller("ann")) == ["one"]
        assert await names(hub, caller("bob")) == ["one"]
        assert await names(hub, caller("ann")) == ["one"]
        assert (await hub.discover(None)).tools == ()
        await hub.close()
    keys = [request["headers"].get("Api-Key") for request in asked if request["method"] == "tools/list"]
    assert keys == ["key-of-ann", "key-of-bob"]
    assert all(request["headers"].get("X-Tag") == "1" for request in asked)
    async with raw_server({"tools/list": listed("one")}, elsewhere) as url:
        hub = MCPHub([ServerSpec("it", url, headers={"X-Team": "blue"})])
        await names(hub)
        await hub.close()
    found = [{name: request["headers"].get(name) for name in ("traceparent", "X-Team")} for request in elsewhere]
    assert all(headers == {"traceparent": "00-1", "X-Team": "blue"} for headers in found)
    assert all("Api-Key" not in request["headers"] and "X-Tag" not in request["headers"] for request in elsewhere)


@pytest.mark.fault("mcp: a list of tools without an end")
async def test_only_allowed_tools_are_offered_and_never_more_than_a_hundred() -> None:
    many = [f"tool_{number}" for number in range(150)]
    async with raw_server({"tools/list": listed(*many)}) as url:
        some, every = MCPHub([ServerSpec("it", url, tools=frozenset({"tool_7"}))]), MCPHub([ServerSpec("it", url)])
        assert await names(some) == ["tool_7"]
        assert len(await names(every)) == 100
        await some.close()
        await every.close()


@pytest.mark.parametrize(
    ("tool", "expected"), [("ok_1", "ok_1"), ("a b/c", "a_b_c"), ("шум", "tool"), ("", "tool"), ("a" * 64, "a" * 64)]
)
def test_names_are_brought_into_the_letters_models_may_use(tool: str, expected: str) -> None:
    assert fit(tool) == expected
    assert fit("a" * 65) != fit("a" * 66)
    assert len(fit("a" * 65)) == 64
    assert model_name("find", "b", {"find", "b_find"}).startswith("b_find_")
