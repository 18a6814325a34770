"""MCP servers behind Core: everything passes, but only allowed tools can be listed and called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx2
import pytest
from aiohttp import ClientError, ClientSession, web

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


@pytest.mark.parametrize("json_response", [False, True], ids=["events", "json"])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_13_19_a_client_sees_and_calls_the_allowed_tools(
    mode: Literal["auto", "legacy"], json_response: bool, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(20),
        running_mcp_server(small_server(), json_response=json_response) as endpoint,
        core_before(endpoint, tmp_path) as core,
        connected(core, mode) as client,
    ):
        listed = await client.list_tools()
        result = await client.call_tool("add", {"left": 25, "right": 47})
    assert [tool.name for tool in listed.tools] == ["add", "echo"]
    assert getattr(result.content[0], "text", None) == "72"


async def test_13_19_without_a_list_of_allowed_tools_all_pass(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(20),
        running_mcp_server(small_server()) as endpoint,
        core_before(endpoint, tmp_path, allowedTools=[]) as core,
        connected(core, "auto") as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "echo", "wipe"]


@pytest.mark.parametrize(
    "body",
    [
        rpc("tools/call", name="wipe"),
        rpc("tools/call"),
        rpc("tools/call", name=["add"]) | {"params": ["add"]},
        [rpc("tools/call", name="add"), rpc("tools/call", 2, name="wipe")],
    ],
    ids=["other", "unnamed", "list", "batch"],
)
async def test_13_19_a_call_of_another_tool_is_a_403_and_is_not_forwarded(body: Any, tmp_path: Path) -> None:
    async with peer(answers()) as server, core_before(server.url, tmp_path) as core, calling(core) as session:
        answer = await post(session, body)
    assert (answer.status, answer.text) == (403, "Tool is not allowed")
    assert server.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b'"tools/call"',
        b"[1]",
        b'{"method": "tools/call", "params": {"name": "add", "name": "wipe"}}',
        b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
    ids=["cut", "empty", "text", "list", "name-twice", "nested", "bytes"],
)
async def test_a_body_that_is_not_a_request_is_a_400_and_is_not_forwarded(body: bytes, tmp_path: Path) -> None:
    async with peer(answers()) as server, core_before(server.url, tmp_path) as core, calling(core) as session:
        answer = await post(session, body)
    assert (answer.status, answer.text) == (400, "Invalid JSON request body")
    assert server.requests == []


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


async def test_events_pass_as_they_arrive(tmp_path: Path) -> None:
    go = asyncio.Event()
    event = b'event: message\r\nid: 7\r\ndata: {"jsonrpc": "2.0", "method": "notifications/progress"}\r\n\r\n'

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event)
        await go.wait()
        await response.write(b"data: " + json.dumps(LISTING).encode() + b"\n\n")
        return response

    async with (
        asyncio.timeout(5),
        peer(answer) as server,
        core_before(server.url, tmp_path) as core,
        calling(core) as session,
        session.post(MCP, json=rpc("tools/list")) as stream,
    ):
        assert await stream.content.readexactly(len(event)) == event
        go.set()
        rest = await stream.read()
    assert [tool["name"] for tool in json.loads(rest.removeprefix(b"data: "))["result"]["tools"]] == ALLOWED


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_tools_are_filtered_however_the_events_are_cut(size: int, newline: bytes, tmp_path: Path) -> None:
    listing = json.dumps(LISTING, indent=1).encode().split(b"\n")
    other = [b": ping", b"", b"id: 1", b"data: ", b"", b'data: {"method": "x"}', b"", b"event: message", b"id: 2"]
    body = newline.join([*other, *(b"data: " + line for line in listing), b"", b""])

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for start in range(0, len(body), size):
            await response.write(body[start : start + size])
        return response

    async with peer(answer) as server, core_before(server.url, tmp_path) as core, calling(core) as session:
        passed = (await post(session, rpc("tools/list"))).body
    before, _, after = passed.partition(b"event: message")
    assert before == newline.join([*other[:-2], b""])
    lines = after.split(b"\n")
    assert b"id: 2" in lines
    [data] = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    assert [tool["name"] for tool in data["result"]["tools"]] == ALLOWED


async def test_a_listening_stream_and_a_batch_are_filtered_too(tmp_path: Path) -> None:
    events = b"data: " + json.dumps(LISTING).encode() + b"\n\n"
    handlers = {"GET": gives(events), "POST": answers(body=[LISTING, {"id": 2}])}

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handlers[request.method](request)

    async with peer(answer) as server, core_before(server.url, tmp_path) as core, calling(core) as session:
        async with session.get(MCP) as stream:
            received = await stream.read()
        batch = await post(session, [rpc("tools/list"), rpc("ping", 2)])
    assert b"wipe" not in received + batch.body
    assert b"echo" in received
    assert batch.json[1] == {"id": 2}


@pytest.mark.parametrize(
    "handler",
    [
        gives(b"not json", "application/json"),
        gives(b"data: not json\n\n"),
        gives(b"\x1f\x8b\x08", "application/json", Content_Encoding="gzip"),
        gives(b"data: " + b"x" * (17 * 2**20)),
    ],
    ids=["json", "event", "encoded", "endless"],
)
async def test_a_response_whose_tools_cannot_be_read_does_not_pass(handler: Handler, tmp_path: Path) -> None:
    async with peer(handler) as server, core_before(server.url, tmp_path) as core, calling(core) as session:
        with pytest.raises(ClientError):
            await post(session, rpc("tools/list"))


async def test_all_tools_at_once_are_for_administrators(tmp_path: Path) -> None:
    async with peer(answers(body=LISTING)) as server, core_before(server.url, tmp_path) as core:
        async with calling(core) as session:
            assert (await post(session, rpc("tools/list"), "?useAllowedTools=false")).status == 403
        async with calling(core, "key-admin") as session:
            listed = await post(session, rpc("tools/list"), "?useAllowedTools=false&x=1")
            called = await post(session, rpc("tools/call", name="wipe"), "?useAllowedTools=false")
    assert (len(listed.json["result"]["tools"]), called.status) == (3, 200)
    assert server.requests[0].url == "/?x=1"


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


async def test_core_025_has_no_toolsets(tmp_path: Path) -> None:
    toolsets = {"small": {"endpoint": "http://127.0.0.1:9/mcp"}}
    async with local_core(config(toolsets=toolsets), tmp_path, core025=True) as core, calling(core) as session:
        answer = await post(session, rpc("tools/list"))
    assert (answer.status, answer.text) == (502, "No route")


async def test_a_client_that_disconnects_stops_the_server(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def never(_: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.Event().wait()
        return web.Response()

    async with peer(never) as server, core_before(server.url, tmp_path) as core, calling(core) as session:
        waiting = asyncio.create_task(post(session, rpc("tools/call", name="add")))
        async with asyncio.timeout(5):
            await asked.wait()
        waiting.cancel()
        async with asyncio.timeout(10):
            await server.cancelled.wait()
