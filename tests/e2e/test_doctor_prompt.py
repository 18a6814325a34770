"""`dial-agent doctor` on what every request costs: context files, names of tools, schemas, the system prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from task.commands.checks import Check
from task.commands.prompt_checks import prompt_checks
from task.settings import Settings
from tests.support.mcp_server import running_mcp_server, small_server
from tests.support.ports import free_port

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


async def rows(**settings: Any) -> dict[str, Check]:
    return {row.name: row for row in await prompt_checks(Settings.model_validate(settings))}


def clashing_server() -> MCPServer:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("clashing", log_level="ERROR")

    @server.tool(name="calculator")
    def calculator(expression: str) -> str:
        """Calculate."""
        return expression

    @server.tool(name="File-Content-Extraction-Tool", description="Read. " * 2000)
    def reader(file_url: str) -> str:
        return file_url

    return server


async def test_without_context_and_servers_the_cost_of_a_request_is_reported() -> None:
    found = await rows()
    assert {name: row.state for name, row in found.items()} == {
        "context": "ok", "tool names": "ok", "tool schemas": "ok", "system prompt": "ok",
    }  # fmt: skip
    assert "tokens in every request; the largest: " in found["tool schemas"].found
    assert "context" not in found["system prompt"].found


async def test_what_a_context_lacks_is_a_note_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "FRAMEWORK_CONTEXT.md").write_text("## Documents\nguide: @guide.md\nbig: @big.md\nlost: @lost.md\n")
    (tmp_path / "guide.md").write_text("Guide.")
    (tmp_path / "big.md").write_text("x" * 5000)
    chosen = {"definition_path": tmp_path / "FRAMEWORK_CONTEXT.md", "max_prompt_bytes": 1000}
    found = await rows(context=chosen)
    assert found["context"].state == "note"
    assert found["context"].found == (
        "2 documents, 0 personas; FRAMEWORK_CONTEXT.md:4: lost.md: there is no such file; big has no room in the prompt"
    )
    assert "of them context" in found["system prompt"].found


async def test_a_context_that_cannot_be_used_is_bad(tmp_path: Path) -> None:
    found = await rows(context={"definition_path": tmp_path / "nowhere.md"})
    assert found["context"].state == "bad"
    assert "nowhere.md cannot be used: there is no such file" in found["context"].found


async def test_a_heavy_system_prompt_is_a_note() -> None:
    assert (await rows(system_prompt="word " * 10_000))["system prompt"].state == "note"


async def test_servers_are_asked_and_clashing_names_and_heavy_schemas_are_reported() -> None:
    async with running_mcp_server(clashing_server()) as url:
        found = await rows(
            mcp_servers=[{"name": "other", "url": url}, {"name": "own", "url": url, "forward_key": True}]
        )
    assert found["MCP server other"].state == "ok"
    assert "each caller's own key" in found["MCP server own"].found
    assert found["tool names"].state == "note"
    assert "calculator of a server is called other_calculator" in found["tool names"].found
    assert "file_content_extraction_tool and File-Content-Extraction-Tool differ in case" in found["tool names"].found
    assert found["tool schemas"].state == "note"
    assert "heavy: File-Content-Extraction-Tool" in found["tool schemas"].found


async def test_an_unreachable_server_and_two_of_one_name_are_bad() -> None:
    away = {"name": "away", "url": f"http://127.0.0.1:{free_port()}/mcp"}
    found = await rows(mcp_servers=[away])
    assert found["MCP server away"].state == "bad"
    assert (await rows(mcp_servers=[away, away]))["MCP servers"].state == "bad"
    async with running_mcp_server(small_server()) as url:
        assert (await rows(mcp_servers=[{"name": "small", "url": url}]))["MCP server small"].state == "ok"
