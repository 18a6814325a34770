"""The search server as a process: access, health, start and end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from task.product.parts import own_token
from task.settings import Settings
from task.tools.mcp.connection import conversation_meta
from task.tools.mcp.mcp_client import MCPClient
from tests.support.mcp_processes import ROOT, ServerProcess, search_server
from tests.support.ports import free_port
from tests.support.search_site import EIFFEL, search_site
from tests.support.up import dial_agent


@pytest.mark.fault("web search: DuckDuckGo answers 202")
async def test_the_server_checks_token_and_host_reports_its_health_and_stops_on_a_signal() -> None:
    async with search_site() as site, aiohttp.ClientSession() as session:
        with search_server(site.url, token="sesame") as server:
            async with MCPClient.create(server.url, token="sesame") as client:
                tools = {tool.name: tool for tool in await client.get_tools()}
                text = await client.call_tool("duckduckgo_web_search", {"query": "eiffel"})
                page = await client.call("fetch_page", {"url": "http://169.254.169.254/latest"})
                site.mood = "202"
                refused = await client.call("duckduckgo_web_search", {"query": "lighthouse"})
            async with session.get(server.url.replace("/mcp", "/health")) as answer:
                health = await answer.json()
            statuses = [
                await status(session, server.url, headers)
                for headers in (
                    {},
                    {"Authorization": "Bearer guess"},
                    {"Authorization": "Bearer sesame", "Host": "evil.example"},
                    {"Authorization": "Bearer sesame", "Origin": "http://evil.example"},
                )
            ]
            code = server.stop()
    search = tools["duckduckgo_web_search"].parameters
    assert (search["required"], search["properties"]["max_results"]["default"]) == (["query"], 5)
    assert all(tool.repeatable for tool in tools.values())
    assert EIFFEL[2] in text
    assert (page.is_error, "not on the public internet" in page.text) == (True, True)
    assert (refused.is_error, "refuses searches" in refused.text) == (True, True)
    assert (health["status"], health["search"], health["kept_searches"]) == ("ok", "paused", 1)
    assert statuses == [401, 401, 421, 403]
    assert code in (0, -signal.SIGTERM)


async def status(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> int:
    async with session.post(url, json={}, headers=headers) as answer:
        return answer.status


@pytest.mark.fault("web search: one user who uses up what all may search and fetch")
async def test_the_agents_users_have_shares_of_their_own() -> None:
    async with search_site() as site:
        with search_server(site.url, token="sesame") as server:
            async with MCPClient.create(server.url, token="sesame") as client:

                async def refused(user: str) -> bool:
                    arguments = {"query": f"eiffel {user} {len(site.queries)}"}
                    meta = conversation_meta("c1", user)
                    return (await client.call("duckduckgo_web_search", arguments, meta=meta)).is_error

                assert [await refused("anna") for _ in range(21)] == [False] * 20 + [True]
                assert not await refused("bob")


@pytest.mark.fault("web search: a server without a token where others reach it")
def test_it_does_not_listen_where_others_reach_it_without_a_token() -> None:
    command = [sys.executable, "-m", "mcp_servers.duckduckgo", "--host", "0.0.0.0", "--port", str(free_port())]
    ended = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, encoding="utf-8", timeout=30)
    assert ended.returncode == 2
    assert ended.stderr == "0.0.0.0 can be reached by others: set AGENT_MCP_TOKEN, or listen on 127.0.0.1.\n"


@pytest.mark.system
async def test_the_command_runs_it_and_names_a_taken_port(tmp_path: Path) -> None:
    async with search_site() as site:
        with search_server(site.url) as server:
            refused = await dial_agent(tmp_path, "duckduckgo", "--port", str(server.port))
    assert (refused.code, refused.err.startswith(f"Port {server.port} is in use")) == (2, True)
    port = free_port()
    command = [sys.executable, "-m", "task", "duckduckgo", "--port", str(port)]
    server = ServerProcess(port, command, {"HOME": str(tmp_path)})
    try:
        server.start()
        async with MCPClient.create(server.url) as client:
            assert [tool.name for tool in await client.get_tools()] == ["duckduckgo_web_search", "fetch_page"]
    finally:
        server.kill()


@pytest.mark.fault("mcp: our servers' token for a foreign host")
@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("http://127.0.0.1:8051/mcp", True), ("http://localhost:8051/mcp", True), ("http://search:8051/mcp", True),
        ("https://search.example.com/mcp", False), ("http://10.0.0.7/mcp", False), ("http://127.evil.example/", False),
    ],
)  # fmt: skip
def test_our_servers_token_goes_to_our_servers_only(url: str, sent: bool) -> None:
    settings = Settings.model_validate({"mcp_token": "sesame"})
    assert own_token(settings, url) == ("sesame" if sent else None)
