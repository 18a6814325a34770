"""The companions as toolsets of Core: core_config/config.json leads other applications to them."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.callers import AGENT, Callers
from task.cli.core_config import OWN_CONFIG
from task.tools.mcp.connection import conversation_meta
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.results import MCPFailure
from tests.support.core import RunningCore, local_core
from tests.support.interpreter import TOKEN, running_interpreter
from tests.support.mcp_processes import search_server
from tests.support.ports import free_port
from tests.support.search_site import EIFFEL, search_site

TOOLSETS: dict[str, Any] = json.loads(OWN_CONFIG.read_text(encoding="utf-8"))["toolsets"]
KEYS = {f"key-{name}": {"project": name.upper(), "role": "default"} for name in ("one", "two")}


def core_with_toolsets(folder: Path, service: str, port: int) -> Any:
    """Local Core with the toolsets of the product's own configuration; `service` is at this port."""
    return local_core({"keys": KEYS, "toolsets": TOOLSETS}, folder, host_map={service: f"127.0.0.1:{port}"})


def toolset(core: RunningCore, name: str, key: str) -> MCPClient:
    """A toolset as another application uses it."""
    return MCPClient(f"{core.url}/v1/toolset/{name}/mcp", headers={"Api-Key": key}, timeout=50)


@pytest.mark.fault(
    "compose: a key that Core does not know at a toolset, a Core that does not answer, and a forged principal"
)
async def test_a_key_of_core_stands_for_the_person_and_the_token_for_the_agent(tmp_path: Path) -> None:
    async with local_core({"keys": KEYS}, tmp_path) as core:
        callers = Callers(TOKEN, core.url)
        found = [await callers.verify_token(key) for key in (TOKEN, "key-one", "key-two", "key-one", "key-of-nobody")]
    one, two = (entry.client_id if entry else "" for entry in found[1:3])
    assert [entry and entry.client_id for entry in found] == [AGENT, one, two, one, None]
    assert one.startswith("dial:")
    assert one != two
    for callers in (Callers(TOKEN), Callers(TOKEN, f"http://127.0.0.1:{free_port()}")):  # no Core, or a silent one
        assert await callers.verify_token(TOKEN)
        assert await callers.verify_token("key-one") is None


@pytest.mark.system
async def test_another_application_searches_through_core_without_our_token(tmp_path: Path) -> None:
    port = free_port()
    async with search_site() as site, core_with_toolsets(tmp_path, "search", port) as core:
        with search_server(site.url, token=TOKEN, core=core.url, port=port) as server:
            async with toolset(core, "web-search", "key-one") as client:
                assert {tool.name for tool in await client.get_tools()} == set(TOOLSETS["web-search"]["allowedTools"])
                assert EIFFEL[2] in await client.call_tool("duckduckgo_web_search", {"query": "eiffel"})
            async with MCPClient(server.url, headers={"Api-Key": "key-of-nobody"}, timeout=50) as client:
                with pytest.raises(MCPFailure):
                    await client.get_tools()


@pytest.mark.fault(
    "compose: a key that Core does not know at a toolset, a Core that does not answer, and a forged principal"
)
@pytest.mark.system
async def test_two_people_never_share_python_variables_whatever_they_say_of_themselves(tmp_path: Path) -> None:
    port, meta = free_port(), conversation_meta("one conversation", "one principal")
    async with core_with_toolsets(tmp_path, "python-interpreter", port) as core:
        with running_interpreter(tmp_path / "python", port=port, core=core.url) as server:
            clients = [toolset(core, "python-interpreter", key) for key in KEYS]
            results: list[str] = []
            for client, code in ((clients[0], "x = 42"), (clients[1], "'x' in dir()"), (clients[0], "x * 2")):
                called = await client.call("execute_code", {"code": code}, meta=meta)
                results.append(str(called.structured["result"]))
            async with server.client() as agent:
                called = await agent.call("execute_code", {"code": "'x' in dir()"}, meta=meta)
                results.append(str(called.structured["result"]))
            for client in clients:
                await client.close()
    assert results[1:] == ["False", "84", "False"]
