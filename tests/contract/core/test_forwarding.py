"""What Core passes to endpoints of its configuration: requests of MCP clients, ratings, configurations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx2
import pytest
from aiohttp import ClientSession, web

from tests.support.core import RunningCore, local_core
from tests.support.core_files import Answer
from tests.support.core_peers import Handler, answers, calling, config, peer
from tests.support.mcp_server import running_mcp_server, small_server

if TYPE_CHECKING:
    from mcp import Client

ALLOWED = ["add", "echo"]
MCP = "/v1/toolset/small/mcp"
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("add", "wipe", "echo")]
LISTING = {"jsonrpc": "2.0", "id": 1, "result": {"tools": TOOLS}}

pytestmark = pytest.mark.local_core


@asynccontextmanager
async def core_before(endpoint: str, tmp_path: Path, **toolset: Any) -> AsyncGenerator[RunningCore]:
    """Core with the toolset `small` at that address."""
    entry = {"transport": "HTTP", "endpoint": endpoint, "allowedTools": ALLOWED} | toolset
    async with local_core(config(toolsets={"small": entry}), tmp_path) as core:
        yield core


@asynccontextmanager
async def connected(core: RunningCore, mode: Literal["auto", "legacy"]) -> AsyncGenerator[Client]:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Api-Key": "key-one"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=10, verify=False, trust_env=False) as http,
        Client(streamable_http_client(f"{core.url}{MCP}", http_client=http), mode=mode) as client,
    ):
        yield client


def rpc(method: str, number: int = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


async def post(session: ClientSession, body: Any, query: str = "", **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.post(f"{MCP}{query}", data=data, headers={"Content-Type": "application/json"} | named) as answer:
        return Answer(answer.status, answer.headers, await answer.read())


def gives(body: bytes, kind: str = "text/event-stream", **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=body, headers={"Content-Type": kind} | named)

    return answer


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_13_19_a_client_sees_and_calls_the_servers_tools(mode: Literal["auto", "legacy"], tmp_path: Path) -> None:
    async with (
        asyncio.timeout(20),
        running_mcp_server(small_server()) as endpoint,
        core_before(endpoint, tmp_path) as core,
        connected(core, mode) as client,
    ):
        listed = await client.list_tools()
        result = await client.call_tool("add", {"left": 25, "right": 47})
    assert {"add", "echo"} <= {tool.name for tool in listed.tools}
    assert getattr(result.content[0], "text", None) == "72"


async def test_requests_and_responses_pass_unchanged(tmp_path: Path) -> None:
    body = json.dumps(rpc("tools/call", name="add", arguments={"left": 1}), indent=3).encode()
    reply = b'{ "jsonrpc":"2.0", "id":1, "result":{"tools": [{"name":"wipe"}]} }'
    handler = gives(reply, "application/json", Mcp_Session_Id="session-1")
    async with (
        peer(handler) as server,
        core_before(f"{server.url}/mcp?a=1", tmp_path) as core,
        calling(core) as session,
    ):
        called = await post(session, body, "?b=2", Accept="text/event-stream", Mcp_Session_Id="session-1")
        async with session.delete(MCP, headers={"Mcp-Session-Id": "session-1"}) as deleted:
            assert deleted.status == 200
    first, second = server.requests
    assert (called.body, called.headers["Mcp-Session-Id"]) == (reply, "session-1")
    assert (first.url, first.body) == ("/mcp?a=1&b=2", body)
    assert (first.headers["Accept"], first.headers["Mcp-Session-Id"]) == ("text/event-stream", "session-1")
    assert (second.method, second.headers["Mcp-Session-Id"]) == ("DELETE", "session-1")


async def test_13_19_the_server_gets_no_key_unless_configured(tmp_path: Path) -> None:
    async with peer(answers()) as server, core_before(server.url, tmp_path) as core:
        async with calling(core) as session:
            await post(session, rpc("tools/list"), X_CONVERSATION_ID="mine")
        async with calling(core, None) as session:
            await post(session, rpc("tools/list"), Authorization="Bearer key-one")
    for seen in server.requests:
        assert "Api-Key" not in seen.headers
        assert "Authorization" not in seen.headers
    assert server.requests[0].headers["X-CONVERSATION-ID"] == "mine"


async def test_13_19_a_configured_server_gets_a_new_key_that_ends_with_the_response(tmp_path: Path) -> None:
    alive: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        async with calling(running[0], request.headers["Api-Key"]) as session, session.get("/v1/bucket") as found:
            alive.append(found.status)
            assert (await found.json())["appdata"].endswith("/appdata/small")
        return web.json_response(LISTING)

    running: list[RunningCore] = []
    async with peer(answer) as server, core_before(server.url, tmp_path, forwardPerRequestKey=True) as core:
        running.append(core)
        async with calling(core) as session:
            await post(session, rpc("tools/list"))
            await post(session, rpc("tools/list"))
        keys = {seen.key for seen in server.requests}
        for key in keys:
            async with calling(core, key) as session, session.get("/v1/bucket") as found:
                assert found.status == 401
    assert alive == [200, 200]
    assert len(keys - {"key-one"}) == 2


async def test_the_callers_token_is_forwarded_where_configured(tmp_path: Path) -> None:
    async with (
        peer(answers()) as server,
        core_before(server.url, tmp_path, forwardAuthToken=True) as core,
        calling(core, None) as session,
    ):
        await post(session, rpc("ping"), Authorization="Bearer key-one")
    assert server.last.headers["Authorization"] == "Bearer key-one"


async def test_toolsets_are_listed_and_found_by_role(tmp_path: Path) -> None:
    toolsets = {
        "small": {"endpoint": "http://127.0.0.1:9/mcp", "allowedTools": ALLOWED, "displayName": "Small"},
        "others": {"endpoint": "http://127.0.0.1:9/mcp", "userRoles": ["other"]},
        "nowhere": {},
    }
    async with local_core(config(toolsets=toolsets), tmp_path) as core, calling(core) as session:
        async with session.get("/openai/toolsets") as answer:
            listed = {item["toolset"]: item for item in (await answer.json())["data"]}
        statuses: dict[str, int] = {}
        for name in ("small", "others", "nowhere", "unknown"):
            async with session.post(f"/v1/toolset/{name}/mcp", json=rpc("tools/list")) as answer:
                statuses[name] = answer.status
        async with session.put(MCP) as answer:
            assert (answer.status, await answer.text()) == (502, "No route")
    assert set(listed) == {"small", "nowhere"}
    assert (listed["small"]["allowed_tools"], listed["small"]["display_name"]) == (ALLOWED, "Small")
    assert statuses == {"small": 502, "others": 403, "nowhere": 503, "unknown": 404}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(json.dumps(rpc("tools/call", name=ALLOWED[0])).encode(), 200, id="an allowed tool"),
        pytest.param(json.dumps(rpc("tools/list")).encode(), 200, id="the list"),
        pytest.param(json.dumps(rpc("tools/call", name="delete_all")).encode(), 403, id="another tool"),
        pytest.param(json.dumps([rpc("ping"), rpc("tools/call", name="delete_all")]).encode(), 403, id="in a batch"),
        pytest.param(b'{"method": "tools/call", "params": {"name": "a", "name": "delete_all"}}', 400, id="two names"),
        pytest.param(json.dumps(rpc("tools/call", name={"a": 1})).encode(), 403, id="a name that is no text"),
        pytest.param(b"tools/call", 400, id="not JSON"),
    ],
)
async def test_a_toolset_passes_calls_of_its_allowed_tools_only(body: bytes, status: int, tmp_path: Path) -> None:
    async with (
        peer(answers()) as server,
        core_before(server.url, tmp_path, allowedTools=ALLOWED) as core,
        calling(core) as session,
        session.post(MCP, data=body, headers={"Content-Type": "application/json"}) as answer,
    ):
        assert answer.status == status
    assert len(server.requests) == (status == 200)


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_toolsets_list_has_its_allowed_tools_only(as_event: bool, tmp_path: Path) -> None:
    async def listing(request: web.Request) -> web.StreamResponse:
        text = json.dumps(LISTING)
        if as_event:
            return web.Response(text=f"event: message\ndata: {text}\n\n", content_type="text/event-stream")
        return web.Response(text=text, content_type="application/json")

    async with (
        peer(listing) as server,
        core_before(server.url, tmp_path, allowedTools=ALLOWED) as core,
        calling(core) as session,
    ):
        answer = await post(session, rpc("tools/list"))
    message = json.loads(answer.text.partition("data: ")[2] if as_event else answer.text)
    assert [tool["name"] for tool in message["result"]["tools"]] == ALLOWED


async def test_core_025_has_no_toolsets(tmp_path: Path) -> None:
    toolsets = {"small": {"endpoint": "http://127.0.0.1:9/mcp"}}
    async with local_core(config(toolsets=toolsets), tmp_path, core025=True) as core, calling(core) as session:
        answer = await post(session, rpc("tools/list"))
    assert (answer.status, answer.text) == (502, "No route")


async def test_rating_and_configuration_are_passed_to_their_endpoints(tmp_path: Path) -> None:
    async with peer(answers(400, {"error": "own words"})) as app:
        features = {"rateEndpoint": f"{app.url}/rate", "configurationEndpoint": f"{app.url}/configuration"}
        entries = {"my app": {"endpoint": "http://x", "features": features}, "plain": "http://x"}
        async with local_core(config(entries), tmp_path) as core, calling(core) as session:
            rating = {"rate": True, "responseId": "r1"}
            async with session.post("/v1/my%20app/rate", json=rating) as answer:
                assert (answer.status, await answer.json()) == (400, {"error": "own words"})
            async with session.get("/v1/deployments/my%20app/configuration?x=1") as answer:
                assert answer.status == 400
            async with session.post("/v1/plain/rate", json=rating) as answer:
                assert (answer.status, await answer.text()) == (200, "")
            async with session.post("/v1/unheard-of/rate", json=rating) as answer:
                assert answer.status == 404
        assert core.live_keys() == []
    assert [seen.url for seen in app.requests] == ["/rate", "/configuration"]
    assert app.requests[0].json == rating
    assert len({seen.key for seen in app.requests} - {"key-one"}) == 2


async def test_13_17_an_endpoint_that_is_down_is_502(tmp_path: Path) -> None:
    entry = {"endpoint": "http://x", "features": {"configurationEndpoint": "http://127.0.0.1:9/"}}
    async with (
        local_core(config({"app": entry}), tmp_path) as core,
        calling(core) as session,
        session.get("/v1/deployments/app/configuration") as answer,
    ):
        assert (answer.status, await answer.text()) == (502, "connection error to origin")
