"""What `doctor` and `tools` report on contexts, rules and MCP servers."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from typer.testing import CliRunner

from task.cli.app import app
from task.cli.checks import Check
from task.cli.doctor import results
from task.cli.tools import Inspection, list_with_servers, show
from task.settings import Settings, load_settings
from task.tools.base import Format
from tests.support.interpreter import TOKEN, RunningInterpreter, running_interpreter
from tests.support.mcp_processes import ServerProcess, foreign_interpreter, mcp_peer
from tests.support.mcp_server import running_mcp_server
from tests.support.ports import free_port

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


PROMPT = ("permission rules", "context", "MCP servers", "tool names")


async def rows(**settings: Any) -> dict[str, Check]:
    return {row.name: row for row in await results(Settings.model_validate(settings), *PROMPT)}


def clashing_server() -> MCPServer:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("clashing", log_level="ERROR")

    @server.tool(name="calculator")
    def calculator(expression: str) -> str:
        """Calculate."""
        return expression

    @server.tool(name="File-Content-Extraction-Tool", description="Read.")
    def reader(file_url: str) -> str:
        return file_url

    return server


async def test_without_context_and_servers_nothing_is_wrong() -> None:
    found = await rows()
    assert {name: row.state for name, row in found.items()} == {
        "permission rules": "ok", "context": "ok", "tool names": "ok",
    }  # fmt: skip


@pytest.mark.fault("context: a missing document")
async def test_what_a_context_lacks_is_a_note_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "FRAMEWORK_CONTEXT.md").write_text("## Documents\nguide: @guide.md\nbig: @big.md\nlost: @lost.md\n")
    (tmp_path / "guide.md").write_text("Guide.")
    (tmp_path / "big.md").write_text("x" * 5000)
    chosen = {"definition_path": tmp_path / "FRAMEWORK_CONTEXT.md", "max_prompt_bytes": 1000}
    found = await rows(context=chosen)
    assert found["context"].state == "note"
    assert found["context"].found == (
        "2 documents, 0 personas; read by read_context_document: big; FRAMEWORK_CONTEXT.md:4: lost.md: "
        "it cannot be read: No such file or directory"
    )


@pytest.mark.fault("configuration: names of tools that clash")
async def test_servers_are_asked_and_clashing_names_are_reported() -> None:
    async with running_mcp_server(clashing_server()) as url:
        found = await rows(
            mcp_servers=[{"name": "other", "url": url}, {"name": "own", "url": url, "forward_key": True}]
        )
    assert found["MCP server other"].state == "ok"
    assert "for each user apart" in found["MCP server own"].found
    assert found["tool names"].state == "note"
    assert "calculator of a server is called other_calculator" in found["tool names"].found
    assert "file_content_extraction_tool and File-Content-Extraction-Tool differ in case" in found["tool names"].found


@pytest.mark.fault("start: a rule or a list on a tool's other name, or on no tool")
async def test_rules_and_lists_that_match_no_tool_of_any_server_are_named() -> None:
    rules = [{"action": "deny", "tool": name} for name in ("web_search", "calculator", "other_calculatr", "write_*")]
    wrong = {"permissions": {"rules": rules, "tools": ["calculator", "clock"]}}
    async with running_mcp_server(clashing_server()) as url:
        server = {"name": "other", "url": url}
        known = (await rows(mcp_servers=[server], **wrong))["permission rules"]
        partly = await rows(mcp_servers=[server, {**server, "name": "own", "forward_key": True}], **wrong)
    assert known.state == "note"
    assert "rule 3 (deny other_calculatr) never decides: no tool is called other_calculatr" in known.found
    assert "rule 4 (deny write_*) never decides" in known.found
    assert "permissions.tools: no tool is called clock" in known.found
    assert ("rule 1 " in known.found, "rule 2 " in known.found) == (False, False)
    assert partly["permission rules"].state == "ok"  # a tool that only callers' own keys list may have that name


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningInterpreter]:
    with running_interpreter(tmp_path_factory.mktemp("interpreter"), "--spares", "0", "--bare") as running:
        yield running


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with mcp_peer(tmp_path_factory.mktemp("peer")) as server:
        yield server


def settings(home: Path, **environ: str) -> Settings:
    return load_settings(environ={"HOME": str(home), **environ}, directory=home)


async def test_doctor_reports_where_code_runs_and_what_is_wrong_with_an_interpreter(
    interpreter: RunningInterpreter, peer: ServerProcess, tmp_path: Path
) -> None:
    async def row(url: str | None, **environ: str) -> tuple[str, str, str]:
        place = {"PYINTERPRETER_MCP_URL": url} if url else {}
        [found] = await results(settings(tmp_path, **place, **environ), "python interpreter")
        return found.state, found.found, found.fix

    state, found, _ = await row(interpreter.url, AGENT_MCP_TOKEN=TOKEN)
    assert (state, found) == ("ok", f"answers at {interpreter.url}")
    with foreign_interpreter("plain") as server:
        assert await row(server.url) == ("ok", f"answers at {server.url}", "")
    assert await row(None) == ("ok", "is started by `dial-agent up`", "")
    away = f"http://127.0.0.1:{free_port()}/mcp"
    assert (await row(away))[:2] == ("note", f"{away}: The server of the Python interpreter cannot be reached")
    state, found, fix = await row(interpreter.url, AGENT_MCP_TOKEN="no")
    assert (state, "AGENT_MCP_TOKEN" in fix, "refused the credentials (status 401)" in found) == ("bad", True, True)
    state, found, _ = await row(peer.url)
    assert (state, "has no tool execute_code, only echo" in found) == ("bad", True)


async def test_tools_are_listed_with_their_sources_and_the_servers_that_do_not_answer(
    peer: ServerProcess, tmp_path: Path
) -> None:
    servers: list[dict[str, Any]] = [
        {"name": "peer", "url": peer.url, "tools": ["echo", "write"]},
        {"name": "gone", "url": f"http://127.0.0.1:{free_port()}/mcp"},
        {"name": "library", "url": "toolset:library"},
    ]
    tools, sentences = await list_with_servers(Inspection(settings(tmp_path, AGENT_MCP_SERVERS=json.dumps(servers))))
    sources = {tool["name"]: tool["source"] for tool in tools}
    assert (sources["calculator"], sources["read_file_lines"], sources["echo"]) == ("agent", "agent", "MCP peer")
    assert next(tool for tool in tools if tool["name"] == "write")["effects"] == ["network", "read", "write"]
    assert sentences == [
        "The server gone cannot be reached.",
        "The tools of library depend on each caller's own key.",
        "`dial-agent up` adds Python and web search, with servers of its own.",
    ]


@pytest.mark.fault("tool calling: a server that is away when schemas are printed")
async def test_the_schemas_of_all_tools_are_printed_in_the_format_of_choice(
    peer: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers: list[dict[str, Any]] = [
        {"name": "peer", "url": peer.url, "tools": ["echo"]},
        {"name": "gone", "url": f"http://127.0.0.1:{free_port()}/mcp"},
    ]
    printed: dict[str, dict[str, Any]] = {}
    for form in get_args(Format):
        await show(settings(tmp_path, AGENT_MCP_SERVERS=json.dumps(servers)), form=form)
        found = capsys.readouterr()
        assert found.err == "The server gone cannot be reached.\n"
        printed[form] = {tool.get("function", tool)["name"]: tool for tool in json.loads(found.out)}
    assert len({tuple(names) for names in printed.values()}) == 1
    assert {"calculator", "rag_search_tool", "echo"} <= printed["mcp"].keys()
    for name, tool in printed["openai"].items():
        function = tool["function"]
        assert printed["dapr"][name]["function"] == function
        assert printed["mcp"][name]["inputSchema"] == function["parameters"]
        assert printed["ollama"][name]["function"]["description"] == function["description"]


@pytest.mark.fault("tool calling: a format of schemas that nobody reads")
def test_the_command_refuses_a_format_that_nobody_reads() -> None:
    ended = CliRunner().invoke(app, ["tools", "--format", "xml"])
    assert ended.exit_code == 2
    assert "'xml' is not one of" in ended.stderr
