"""No client keeps what a server has set for one caller, and sends it along with another's request."""

import ast
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web

from mcp_servers.duckduckgo.fetch import PageFetcher
from mcp_servers.duckduckgo.guard import GuardedTransport
from task.tools.mcp.connection import CallIdentity
from task.tools.mcp.mcp_client import MCPClient
from tests.support.mcp_wire import http_server, listed, raw_server

COOKIE = {"Set-Cookie": "session=of-the-first; Path=/"}
ROOT = Path(__file__).parents[2]
CLIENTS = {"ClientSession": "cookie_jar", "AsyncClient": "cookies"}


class Cookies:
    """A server that sets a cookie with every answer; `seen` are the cookies that came with the requests."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.headers.get("Cookie"))
        if request.path == "/start":
            return web.Response(status=302, headers={**COOKIE, "Location": "/end"})
        return web.Response(text="text", headers={**COOKIE, "Content-Type": "text/plain"})


@pytest.mark.fault("mcp: a server that sets a cookie for one caller")
async def test_mcp_servers() -> None:
    requests: list[dict[str, Any]] = []
    result = {"content": [{"type": "text", "text": "done"}]}
    async with raw_server({"tools/list": listed("look"), "tools/call": result}, requests, COOKIE) as url:
        client = MCPClient(url)
        for key in ("key-one", "key-two"):
            await client.call("look", {}, identity=CallIdentity({"Api-Key": key}, partition=key, own=True))
        await client.close()
    assert [request["headers"].get("Cookie") for request in requests] == [None] * len(requests)
    assert {request["headers"].get("Api-Key") for request in requests} >= {"key-one", "key-two"}


@pytest.mark.fault("web search: a site that sets cookies")
async def test_web_pages_also_within_one_redirect() -> None:
    seen = Cookies()

    async def resolve_name(host: str, port: int) -> list[str]:
        return ["93.184.215.14"]

    async with http_server(seen.answer) as url:
        local = httpx2.URL(url)
        transport = GuardedTransport(resolve_name=resolve_name, dial=lambda *_: (local.host, local.port or 80))
        pages = PageFetcher(transport)
        assert (await pages.page("http://docs.example/start")).text == "text"
        await pages.close()
    assert seen.seen == [None, None]


@pytest.mark.fault("mcp: a server that sets a cookie for one caller")
def test_every_http_client_is_made_without_cookies() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for folder in ("task", "mcp_servers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "cli" not in path.parts  # those act for one operator
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and (wanted := CLIENTS.get(ast.unparse(call.func).rpartition(".")[2]))
        if wanted not in {keyword.arg for keyword in call.keywords}
    ]
    assert calls == []
