"""What Core passes to endpoints of its configuration: requests of MCP clients, ratings, configurations."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from aiohttp import ClientSession, web

from tests.support.core import RunningCore, local_core
from tests.support.core_peers import Handler, Peer, answers, calling, config, peer
from tests.support.mcp_server import running_mcp_server, small_server
from tests.support.replies import Reply

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
async def toolset(
    answer: Handler, tmp_path: Path, path: str = "", **entry: Any
) -> AsyncGenerator[tuple[Peer, RunningCore, ClientSession]]:
    """A server of the toolset `small`, Core in front of it, and a caller."""
    async with (
        peer(answer) as server,
        core_before(f"{server.url}{path}", tmp_path, **entry) as core,
        calling(core) as session,
    ):
        yield server, core, session


def rpc(method: str, number: int = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


async def post(session: ClientSession, body: Any, query: str = "", **headers: str) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.post(f"{MCP}{query}", data=data, headers={"Content-Type": "application/json"} | named) as answer:
        return Reply(answer.status, answer.headers, await answer.read())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_13_19_a_client_sees_and_calls_the_servers_tools(mode: Literal["auto", "legacy"], tmp_path: Path) -> None:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    options: dict[str, Any] = {"headers": {"Api-Key": "key-one"}, "timeout": 10, "verify": False, "trust_env": False}
    async with (
        asyncio.timeout(20),
        running_mcp_server(small_server()) as endpoint,
        core_before(endpoint, tmp_path) as core,
        httpx2.AsyncClient(**options) as http,
        Client(streamable_http_client(f"{core.url}{MCP}", http_client=http), mode=mode) as client,
    ):
        listed = await client.list_tools()
        result = await client.call_tool("add", {"left": 25, "right": 47})
    assert {"add", "echo"} <= {tool.name for tool in listed.tools}
    assert getattr(result.content[0], "text", None) == "72"


async def test_requests_and_responses_pass_unchanged(tmp_path: Path) -> None:
    body = json.dumps(rpc("tools/call", name="add", arguments={"left": 1}), indent=3).encode()
    reply = b'{ "jsonrpc":"2.0", "id":1, "result":{"tools": [{"name":"wipe"}]} }'

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=reply, content_type="application/json", headers={"Mcp-Session-Id": "session-1"})

    async with toolset(answer, tmp_path, "/mcp?a=1") as (server, _, session):
        called = await post(session, body, "?b=2", Accept="text/event-stream", Mcp_Session_Id="session-1")
        async with session.delete(MCP, headers={"Mcp-Session-Id": "session-1"}) as deleted:
            assert deleted.status == 200
    first, second = server.requests
    assert (called.body, called.headers["Mcp-Session-Id"]) == (reply, "session-1")
    assert (first.url, first.body) == ("/mcp?a=1&b=2", body)
    assert (first.headers["Accept"], first.headers["Mcp-Session-Id"]) == ("text/event-stream", "session-1")
    assert (second.method, second.headers["Mcp-Session-Id"]) == ("DELETE", "session-1")


@pytest.mark.parametrize("forwarded", [False, True])
async def test_13_19_the_server_gets_no_credentials_of_the_caller_unless_configured(
    tmp_path: Path, forwarded: bool
) -> None:
    async with toolset(answers(), tmp_path, forwardAuthToken=forwarded) as (server, core, session):
        await post(session, rpc("tools/list"), X_CONVERSATION_ID="mine")
        async with calling(core, None) as with_token:
            await post(with_token, rpc("tools/list"), Authorization="Bearer key-one")
    assert ["Api-Key" in seen.headers for seen in server.requests] == [False, False]
    tokens = [seen.headers.get("Authorization") for seen in server.requests]
    assert tokens == [None, "Bearer key-one" if forwarded else None]
    assert server.requests[0].headers["X-CONVERSATION-ID"] == "mine"


async def test_13_19_a_configured_server_gets_a_new_key_that_ends_with_the_response(tmp_path: Path) -> None:
    alive: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        async with calling(core, request.headers["Api-Key"]) as session, session.get("/v1/bucket") as found:
            alive.append(found.status)
            assert (await found.json())["appdata"].endswith("/appdata/small")
        return web.json_response(LISTING)

    async with toolset(answer, tmp_path, forwardPerRequestKey=True) as (server, core, session):
        for _ in range(2):
            await post(session, rpc("tools/list"))
        keys = {seen.key for seen in server.requests}
        for key in keys:
            async with calling(core, key) as dead, dead.get("/v1/bucket") as found:
                assert found.status == 401
    assert (alive, len(keys - {"key-one"})) == ([200, 200], 2)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(rpc("tools/call", name=ALLOWED[0]), 200, id="an allowed tool"),
        pytest.param(rpc("tools/list"), 200, id="the list"),
        pytest.param(rpc("tools/call", name="delete_all"), 403, id="another tool"),
        pytest.param([rpc("tools/call", name="delete_all")], 400, id="in a batch"),
        pytest.param(b'{"method": "tools/call", "params": {"name": "a", "name": "delete_all"}}', 400, id="two names"),
        pytest.param(rpc("tools/call", name={"a": 1}), 403, id="a name that is no text"),
        pytest.param(b"tools/call", 400, id="not JSON"),
    ],
)
async def test_a_toolset_passes_calls_of_its_allowed_tools_only(body: Any, status: int, tmp_path: Path) -> None:
    async with toolset(answers(), tmp_path) as (server, _, session):
        assert (await post(session, body)).status == status
    assert len(server.requests) == (status == 200)


async def test_a_call_of_another_tool_is_refused_by_whatever_method(tmp_path: Path) -> None:
    async with toolset(answers(), tmp_path) as (server, _, session):
        for method in ("PUT", "PATCH"):
            async with session.request(method, MCP, json=rpc("tools/call", name="delete_all")) as answer:
                assert answer.status == 403
    assert server.requests == []


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_toolsets_list_has_its_allowed_tools_only(as_event: bool, tmp_path: Path) -> None:
    async def listing(_: web.Request) -> web.StreamResponse:
        text = json.dumps(LISTING)
        if as_event:
            return web.Response(text=f"event: message\ndata: {text}\n\n", content_type="text/event-stream")
        return web.Response(text=text, content_type="application/json")

    async with toolset(listing, tmp_path) as (_, _, session):
        answer = await post(session, rpc("tools/list"))
    message = answer.chunks[0] if as_event else answer.json
    assert [tool["name"] for tool in message["result"]["tools"]] == ALLOWED


async def test_toolsets_are_called_and_found_by_role(tmp_path: Path) -> None:
    toolsets = {
        "small": {"endpoint": "http://127.0.0.1:9/mcp"},
        "secret": {"endpoint": "http://127.0.0.1:9/mcp", "userRoles": ["other"]},
        "nowhere": {},
    }
    expected = {"small": 502, "secret": 403, "nowhere": 503, "unheard-of": 404}
    async with local_core(config(toolsets=toolsets), tmp_path) as core, calling(core) as session:
        async with session.get("/openai/toolsets") as listed:
            assert [item["id"] for item in (await listed.json())["data"]] == ["small", "nowhere"]
        for name, status in expected.items():
            async with session.post(f"/v1/toolset/{name}/mcp", json=rpc("tools/list")) as answer:
                assert answer.status == status


async def test_rating_and_configuration_are_passed_to_their_endpoints(tmp_path: Path) -> None:
    rating = {"rate": True, "responseId": "r1"}
    async with peer(answers(400, {"error": "own words"})) as app:
        features = {"rateEndpoint": f"{app.url}/rate", "configurationEndpoint": f"{app.url}/configuration"}
        entries = {"my app": {"endpoint": "http://x", "features": features}, "plain": "http://x"}
        async with local_core(config(entries), tmp_path) as core, calling(core) as session:
            for method, path, status, text in (
                ("POST", "/v1/my%20app/rate", 400, '{"error": "own words"}'),
                ("GET", "/v1/deployments/my%20app/configuration?x=1", 400, '{"error": "own words"}'),
                ("POST", "/v1/plain/rate", 200, ""),
                ("POST", "/v1/unheard-of/rate", 404, ""),
            ):
                async with session.request(method, path, json=rating) as answer:
                    assert (answer.status, await answer.text()) == (status, text)
    assert [seen.url for seen in app.requests] == ["/rate", "/configuration"]
    assert app.requests[0].json == rating
    assert len({seen.key for seen in app.requests} - {"key-one"}) == 2
