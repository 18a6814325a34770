"""Rules, settings and traces know a tool by one name at every door, whichever name a door or a setting gives it."""

import json
from pathlib import Path
from typing import Any

import pytest

from task.cli.tools import Inspection, list_with_servers, show
from task.llm.scripted import says, wants
from task.settings import Settings
from tests.support.http_api import Api, http_api, said
from tests.support.product import product

SEARCH, ALIAS = "duckduckgo_web_search", "web_search"
TOOL = '''
from task.tools.declare import tool
from task.tools.models import Effect

@tool(effects={Effect.READ, Effect.NETWORK})
def duckduckgo_web_search(query: str, max_results: int = 5) -> str:
    """Search the web."""
    return f"{max_results} results for {query}"
'''


def search_tool(folder: Path) -> str:
    """A file with a tool of the search server's name."""
    file = folder / "search_tool.py"
    file.write_text(TOOL)
    return str(file)


async def trace_of(api: Api) -> dict[str, Any]:
    [row] = (await api.get("/traces")).json["traces"]
    return (await api.get(f"/traces/{row['trace_id']}")).json


async def test_the_http_api_offers_the_alias_and_everything_else_knows_the_tools_name(tmp_path: Path) -> None:
    call = wants(ALIAS, query="otters", num_results=2)
    async with http_api(call, says("Two."), tmp_path=tmp_path, tool_paths=[search_tool(tmp_path)]) as api:
        answer = (await api.post("/chat", {"messages": [said("Otters?")]})).json
        messages = (await api.get(f"/session/{answer['session_id']}/messages")).json["messages"]
        events = await api.events(answer["run_id"])
        trace = await trace_of(api)
        ready = (await api.get("/ready")).json["tools"]
    first, second = api.upstream.requests
    assert (ALIAS in first.tools, SEARCH in first.tools) == (True, False)
    [sent] = second.messages[-2]["tool_calls"]
    assert (sent["function"]["name"], json.loads(sent["function"]["arguments"])["num_results"]) == (ALIAS, 2)
    assert [made["name"] for made in trace["tool_calls"]] == [SEARCH]
    assert [made["function"]["name"] for message in messages for made in message.get("tool_calls") or ()] == [SEARCH]
    assert [event["name"].split(":")[0] for event in events if event["type"] == "stage_opened"] == [SEARCH]
    assert (SEARCH in ready, ALIAS in ready) == (True, False)
    assert f'"{ALIAS}' not in json.dumps([trace, messages, events])


@pytest.mark.fault("start: a rule or a list on a tool's other name, or on no tool")
@pytest.mark.parametrize(("called", "door"), [(ALIAS, "http"), (SEARCH, "dial")])
async def test_a_rule_on_either_name_acts_at_every_door(called: str, door: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "permissions": {"rules": [{"action": "deny", "tool": ALIAS}]}, "tool_paths": [search_tool(tmp_path)],
    }  # fmt: skip
    turns = [wants(called, query="x"), says("I may not.")]
    if door == "http":
        async with http_api(*turns, tmp_path=tmp_path, **settings) as api:
            await api.complete("Search")
            received = api.upstream.requests
    else:
        async with product(*turns, tmp_path=tmp_path, **settings) as p:
            await p.reader.ask("Search")
            received = p.upstream.requests
    assert f"a rule forbids it (deny {ALIAS})" in received[1].messages[-1]["content"]


async def test_the_list_of_tools_names_the_alias_beside_the_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.model_validate({"tool_paths": [search_tool(tmp_path)]})
    aliases = {tool["name"]: tool["aliases"] for tool in (await list_with_servers(Inspection(settings)))[0]}
    assert (aliases[SEARCH], aliases["calculator"], ALIAS in aliases) == ([ALIAS], [], False)
    await show(settings)
    assert f"also {ALIAS}" in capsys.readouterr().out


@pytest.mark.parametrize("name", [SEARCH, ALIAS])
async def test_a_request_may_force_the_tool_by_either_name(name: str, tmp_path: Path) -> None:
    choice = {"type": "function", "function": {"name": name}}
    turns = [wants(ALIAS, query="x"), says("Done.")]
    async with http_api(*turns, tmp_path=tmp_path, tool_paths=[search_tool(tmp_path)]) as api:
        answer = await api.complete("Search", tool_choice=choice)
    assert (answer.status, api.upstream.requests[0].body["tool_choice"]["function"]["name"]) == (200, ALIAS)


async def test_a_callers_own_tool_takes_the_place_of_ours_under_either_name(tmp_path: Path) -> None:
    own = {"type": "function", "function": {"name": ALIAS, "parameters": {"type": "object", "properties": {}}}}
    async with http_api(wants(ALIAS), tmp_path=tmp_path, tool_paths=[search_tool(tmp_path)]) as api:
        answer = await api.complete("Search", tools=[own])
    assert answer.json["choices"][0]["finish_reason"] == "tool_calls"
    assert [name for name in api.upstream.requests[0].tools if "search" in name and "web" in name] == [ALIAS]
