"""MCP servers as a person meets them in DIAL Chat: the search server as a real process, and servers that misbehave."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from task.app import GeneralPurposeAgentApplication
from task.conversation.messages import SHOWN_AGAIN
from task.errors import ToolError
from task.llm.scripted import Reply, says, wants
from task.settings import Settings
from task.tools.models import Effect
from tests.support.mcp_processes import PNG, ServerProcess, mcp_peer, search_server
from tests.support.mcp_wire import listed, raw_server
from tests.support.ports import free_port
from tests.support.product import product
from tests.support.search_site import EIFFEL, FOUNDER, QUILLHAVEN, search_site
from tests.support.upstream import Received

SEARCH = "duckduckgo_web_search"
READS = {"readOnlyHint": True}


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with mcp_peer(tmp_path_factory.mktemp("peer"), token="sesame") as server:
        yield server


@pytest.fixture(scope="module")
def older_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with mcp_peer(tmp_path_factory.mktemp("older"), legacy=True) as server:
        yield server


def tool_result(received: Received) -> str:
    """The latest tool result in the request."""
    return str(received.messages[-1]["content"])


def first_snippet(received: Received) -> Reply:
    """An answer taken from the first result, word for word."""
    found = re.search(r"^1\. .*\n   URL: (\S+)\n   (.*)$", tool_result(received), re.MULTILINE)
    return says(f"{found[2]} Source: {found[1]}") if found else says("The web cannot be searched right now.")


@pytest.mark.usefixtures("chat")
@pytest.mark.fault("mcp: a server that is stopped between two turns")
async def test_15_16_25_the_web_is_searched_refused_stopped_and_searched_again(tmp_path: Path) -> None:
    search_first = [wants(SEARCH, query="weather in Quillhaven"), first_snippet]
    lighthouse = [wants(SEARCH, query="Who founded the lighthouse?"), first_snippet]
    stopped = [wants(SEARCH, query="weather in London"), first_snippet]
    again = [wants(SEARCH, query="eiffel height"), first_snippet]
    turns = [*search_first, *lighthouse, *stopped, says("It is down."), *again]
    async with search_site() as site:
        with search_server(site.url, token="sesame") as server:
            async with product(*turns, tmp_path=tmp_path, ddg_mcp_url=server.url, mcp_token="sesame") as p:
                weather = await p.reader.ask("What is the weather in Quillhaven right now?")
                who = await p.reader.ask("Who founded the lighthouse of Quillhaven?")
                server.kill()
                london = await p.reader.ask("What's the weather in London?")
                missing = await p.reader.ask("And now?")
                server.start()
                back = await p.reader.ask("How tall is the Eiffel Tower?")
    [stage] = weather.stages.values()
    assert weather.content == f"{QUILLHAVEN[2]} Source: {QUILLHAVEN[1]}"
    assert (stage.status, "weather in Quillhaven" in stage.name) == ("completed", True)
    assert "**Query**: weather in Quillhaven" in stage.content
    assert QUILLHAVEN[2] in stage.content
    assert who.content.startswith(FOUNDER[2])
    assert [s.status for s in london.stages.values()] == ["failed"]
    assert "cannot be reached" in london.stages[0].content
    assert london.content == "The web cannot be searched right now."
    assert (missing.stages[0].name, missing.stages[0].status) == ("Initialization issues", "failed")
    assert "## search" in missing.stages[0].content
    assert "Some tools are not available right now:\n- search:" in p.upstream.requests[-3].messages[0]["content"]
    assert back.content.startswith(EIFFEL[2])
    assert "Initialization issues" not in [s.name for s in back.stages.values()]


@pytest.mark.fault("mcp: a server that is down at the start")
async def test_25_an_agent_starts_without_its_search_server_and_finds_it_later(tmp_path: Path) -> None:
    async with search_site() as site:
        with search_server(site.url, started=False) as server:
            turns = [says("I cannot search."), wants(SEARCH, query="eiffel"), first_snippet]
            async with product(*turns, tmp_path=tmp_path, ddg_mcp_url=server.url) as p:
                without = await p.reader.ask("What's the weather in London?")
                server.start()
                with_it = await p.reader.ask("How tall is the Eiffel Tower?")
    assert (without.status, without.content) == (200, "I cannot search.")
    assert (without.stages[0].name, without.stages[0].status) == ("Initialization issues", "failed")
    assert SEARCH not in p.upstream.requests[0].tools
    assert SEARCH in p.upstream.requests[1].tools
    assert with_it.content.startswith(EIFFEL[2])


@pytest.mark.usefixtures("chat")
@pytest.mark.fault("mcp: two agents on one server")
async def test_21_five_at_once_get_their_own_results_and_two_agents_share_one_server(
    peer: ServerProcess, tmp_path: Path
) -> None:
    def marked(received: Received) -> Reply:
        if received.messages[-1]["role"] == "user":
            return wants("echo", text=str(received.messages[-1]["content"]))
        return says(tool_result(received).split("\n")[0])

    server = {"name": "peer", "url": peer.url, "token": "sesame"}
    async with (
        product(tmp_path=tmp_path / "one", then=marked, mcp_servers=[server]) as one,
        product(tmp_path=tmp_path / "two", then=marked, mcp_servers=[server]) as two,
    ):
        people = [one.reader, one.other, two.reader, two.other]
        answers = await asyncio.gather(*(person.ask(f"marker {n}") for n, person in enumerate(people)))
    assert [answer.content for answer in answers] == [f"marker {n}" for n in range(4)]


async def test_pictures_and_files_are_attached_and_never_travel_as_text(peer: ServerProcess, tmp_path: Path) -> None:
    turns = [wants("picture"), wants("report"), says("Done.")]
    server = {"name": "peer", "url": peer.url, "token": "sesame", "tools": ["picture", "report"]}
    async with product(*turns, tmp_path=tmp_path, mcp_servers=[server]) as p:
        answer = await p.reader.ask("Show me")
        attached = [item for item in answer.attachments.values() if item.get("url")]
        files = [await p.reader.get(item["url"]) for item in attached]
    assert [(item["type"], item["title"]) for item in attached] == [
        ("image/png", "image_2.png"), ("text/csv", "report.csv"),
    ]  # fmt: skip
    assert files == [(200, PNG), (200, b"a,b\n1,2\n")]
    link = next(item for item in answer.attachments.values() if item.get("reference_url"))
    assert link["reference_url"] == "https://docs.example/manual"
    assert "A dot." in tool_result(p.upstream.requests[1])
    assert "image_2.png (image/png) files/" in tool_result(p.upstream.requests[1])
    assert "iVBOR" not in str(p.upstream.requests[2].body)
    assert {"echo", "write"}.isdisjoint(p.upstream.requests[0].tools)


@pytest.mark.fault("mcp: a file whose type is another header")
async def test_a_file_with_a_forged_type_is_attached_without_it(tmp_path: Path) -> None:
    image = {"type": "image", "data": "iVBORw==", "mimeType": "image/png\r\nX-Evil: 1"}
    results = {"tools/list": listed("draw", annotations=READS), "tools/call": {"content": [image]}}
    async with raw_server(results) as url:
        more: Any = {"mcp_servers": [{"name": "art", "url": url}]}
        async with product(wants("draw"), says("Done."), tmp_path=tmp_path, **more) as p:
            answer = await p.reader.ask("Draw")
            result = tool_result(p.upstream.requests[-1])
    [drawn] = answer.attachments.values()
    assert (drawn["type"], "Attached for the user" in result) == ("application/octet-stream", True)


@pytest.mark.usefixtures("chat")
@pytest.mark.fault("mcp: a source with Markdown, HTML, line ends or another scheme in its link")
async def test_pages_for_the_model_are_cited_by_an_answer_that_waited_for_approval(
    peer: ServerProcess, tmp_path: Path
) -> None:
    turns = [wants("pages"), wants("wait", seconds=0), says("It is so [1].")]
    server = {"name": "peer", "url": peer.url, "token": "sesame", "tools": ["pages", "wait"]}
    async with product(*turns, tmp_path=tmp_path, mcp_servers=[server]) as p:
        asked = await p.reader.ask("Is it so?")
        answer = await p.reader.press("Approve", asked)
    result = next(message["content"] for message in p.upstream.requests[-1].messages if message["role"] == "tool")
    assert result.startswith("About one [1].\n   Cite as [1].\n\nAbout two.\n\ntwo (")
    assert "javascript:" not in str(answer.attachments)
    assert asked.attachments == {}
    assert list(answer.attachments.values()) == [
        {
            "type": "text/markdown", "title": "[1] A page", "reference_url": "https://docs.example/one",
            "data": r"!\[x\](https://evil.example/p.png) \<img src=https://evil.example/q.png> and words.",
        }
    ]  # fmt: skip


async def test_a_call_of_a_server_ends_at_its_own_limit(peer: ServerProcess, tmp_path: Path) -> None:
    server = {"name": "peer", "url": peer.url, "token": "sesame", "tools": ["wait"], "seconds": 0.5}
    rules = {"rules": [{"action": "allow", "tool": "wait", "trusted": True}]}
    turns = [wants("wait", seconds=60), says("It took too long.")]
    async with product(*turns, tmp_path=tmp_path, mcp_servers=[server], permissions=rules) as p:
        answer = await p.reader.ask("Wait")
    assert "did not answer within 0.5 s" in tool_result(p.upstream.requests[1])
    assert [stage.status for stage in answer.stages.values()] == ["failed"]


@pytest.mark.fault("file: a picture of an earlier answer that was deleted, or is too large to show again")
async def test_a_made_picture_reaches_a_model_that_sees_in_the_next_turns_until_it_is_deleted(
    peer: ServerProcess, tmp_path: Path
) -> None:
    turns = [wants("picture"), says("Here."), says("A dot."), says("It was a dot.")]
    server = {"name": "peer", "url": peer.url, "token": "sesame", "tools": ["picture"]}
    async with product(*turns, tmp_path=tmp_path, sees=True, mcp_servers=[server]) as p:
        [picture] = (await p.reader.ask("Draw")).attachments.values()
        await p.reader.ask("What is in that picture?")
        shown = p.upstream.requests[-1].messages[-1]["content"]
        await p.reader.delete(picture["url"])
        after = await p.reader.ask("And now?")
    assert shown == [
        {"type": "text", "text": "What is in that picture?"},
        {"type": "text", "text": f"{SHOWN_AGAIN}\n- {picture['url']}"},
        {"type": "image_url", "image_url": {"url": picture["url"]}},
    ]
    assert after.content == "It was a dot."
    assert "image_url" not in str(p.upstream.requests[-1].messages)


async def test_a_server_learns_of_the_conversation_but_not_its_name_and_gets_no_key(
    peer: ServerProcess, tmp_path: Path
) -> None:
    plain = {"name": "peer", "url": peer.url, "token": "sesame", "tools": ["caller"]}
    trusted = {**plain, "name": "trusted", "forward_key": True}
    turns = [wants("caller"), wants("trusted_caller"), says("Done.")]
    async with product(*turns, tmp_path=tmp_path, mcp_servers=[plain, trusted]) as p:
        await p.reader.ask("Who am I?")
    first, second = (tool_result(request) for request in p.upstream.requests[1:3])
    assert re.search(r'"dial-general-purpose-agent/conversation_id": ?"[0-9a-f]{32}"', first)
    assert "bucket" not in first
    assert "api-key" not in first
    assert "api-key" in second


@pytest.mark.fault("mcp: names that models may not use, and names that clash")
@pytest.mark.fault("mcp: a schema that points elsewhere")
async def test_odd_names_and_schemas_that_point_elsewhere_are_offered_but_not_large_ones(
    tmp_path: Path,
) -> None:
    offered = listed("search files!", "calculator", "x" * 80, annotations=READS)["tools"]
    elsewhere = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    offered.append({"name": "elsewhere", "inputSchema": elsewhere, "annotations": READS})
    large = {"type": "object", "properties": {"a": {"enum": ["x" * 100_000]}}}
    offered.append({"name": "bad", "inputSchema": large})
    calls: list[str] = []

    def call(parameters: dict[str, object]) -> dict[str, object]:
        calls.append(str(parameters["name"]))
        return {"content": [{"type": "text", "text": "found"}]}

    turns = [wants("search_files"), wants("odd_calculator"), wants("elsewhere", a=[1]), says("Done.")]
    async with (
        raw_server({"tools/list": {"tools": offered}, "tools/call": call}) as odd,
        raw_server({"tools/list": {"tools": [{"name": "bad", "inputSchema": {"type": 7}}]}}) as broken,
        product(
            *turns, tmp_path=tmp_path, mcp_servers=[{"name": "odd", "url": odd}, {"name": "b", "url": broken}]
        ) as p,
    ):
        await p.reader.ask("Look")
    names = p.upstream.requests[0].tools
    assert calls == ["search files!", "calculator", "elsewhere"]
    assert {"search_files", "odd_calculator", "calculator"} <= set(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith("bad")]


@pytest.mark.fault("mcp: a server of the older protocol")
async def test_a_toolset_of_core_is_reached_by_name_with_the_callers_own_key(
    older_peer: ServerProcess, tmp_path: Path
) -> None:
    toolsets = {
        "library": {"transport": "HTTP", "endpoint": older_peer.url, "allowedTools": ["caller", "write"],
                    "forwardPerRequestKey": True},
    }  # fmt: skip
    async with product(
        wants("caller"), says("Done."), tmp_path=tmp_path, toolsets=toolsets,
        mcp_servers=[{"name": "library", "url": "toolset:library"}],
    ) as p:  # fmt: skip
        answer = await p.reader.ask("Who am I?")
    assert answer.content == "Done."
    assert [stage.status for stage in answer.stages.values()] == ["completed"]
    assert {"caller", "write"} <= set(p.upstream.requests[0].tools)
    assert "echo" not in p.upstream.requests[0].tools
    assert '"x-conversation-id"' in tool_result(p.upstream.requests[1])


async def test_the_documented_discovery_gives_the_tools_of_one_server(
    older_peer: ServerProcess, tmp_path: Path
) -> None:
    application = GeneralPurposeAgentApplication(settings=Settings(data_dir=tmp_path))
    try:
        tools = await application._get_mcp_tools(older_peer.url)
        again = await application._get_mcp_tools(older_peer.url)
        with pytest.raises(ToolError, match="cannot be reached"):
            await application._get_mcp_tools(f"http://127.0.0.1:{free_port()}/mcp")
    finally:
        await application.opened[0].close()
    assert {"echo", "write"} <= {tool.name for tool in tools} == {tool.name for tool in again}
    assert {tool.name: Effect.WRITE in tool.effects for tool in tools if tool.name in ("echo", "write")} == {
        "echo": False, "write": True,
    }  # fmt: skip
