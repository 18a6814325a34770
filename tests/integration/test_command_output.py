"""What commands print: nothing of another's text acts on the terminal, and all of it goes through one function."""

import ast
import io
import sys
from pathlib import Path

import pytest

import task.cli
from task.cli.checks import Check
from task.cli.doctor import results
from task.cli.options import write
from task.cli.tools import Cell, print_table, show
from task.cli.traces import columns
from task.coding.report import print_json_line
from task.runs.events import Noted
from task.settings import Settings
from task.settings.sections import McpServerSettings
from tests.support.mcp_server import running_mcp_server

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\x7f"
FOLDER = Path(task.cli.__file__).parent


def acting(text: str) -> set[str]:
    """The characters that a terminal would act on."""
    return {c for c in text if not (c.isprintable() or c == "\n")}


@pytest.mark.fault("command line: an MCP server whose names and descriptions hold commands for the terminal")
async def test_tools_and_doctor_spell_out_a_servers_terminal_commands(capsys: pytest.CaptureFixture[str]) -> None:
    from mcp.server.mcpserver import MCPServer  # slow to import

    server = MCPServer("small", log_level="ERROR")
    server.add_tool(lambda: "x", name="look", description=f"Look {HOSTILE} there.")
    async with running_mcp_server(server) as url:
        settings = Settings(mcp_servers=[McpServerSettings.model_validate({"name": "small", "url": url})])
        await show(settings)
        await show(settings, as_json=True)
        checks: list[Check] = await results(settings, "tool names")
    for check in [*checks, Check(HOSTILE, "bad", HOSTILE, HOSTILE)]:
        rows: list[list[Cell]] = [[("✗", "red"), check.name, check.found, check.fix]]
        print_table(("", "Check", "Found", "Fix"), rows, [HOSTILE])
    write(columns(("A",), [(HOSTILE,)]))
    write(HOSTILE, err=True)
    print_json_line(Noted(HOSTILE))
    printed = capsys.readouterr()
    assert acting(printed.out + printed.err) == set()
    assert "\\x1b[2J" in printed.out.replace(" ", "")


def test_a_diff_for_a_program_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (False, True):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        write(HOSTILE, raw=True, end="")
        assert (stream.getvalue() == HOSTILE) is not is_terminal


def past_the_function(source: str) -> list[str]:
    """The calls of a module that print text which may be another's past the one function."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called, first = ast.unparse(node.func), node.args[0] if node.args else None
        spelt = first is None or ast.unparse(first).startswith("visible(") or isinstance(first, ast.Constant)
        if (
            called in ("print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write")
            or (called == "Text" and not spelt)
            or (called.endswith("console.print") and isinstance(first, ast.JoinedStr))
        ):
            found.append(ast.unparse(node))
    return found


def test_no_command_prints_past_the_one_function() -> None:
    modules = [path for path in FOLDER.glob("*.py") if path.name != "options.py"]
    assert len(modules) > 15
    assert {path.name: calls for path in modules if (calls := past_the_function(path.read_text("utf-8")))} == {}
    for source in ('print("x")', "typer.echo(x)", "sys.stdout.write(x)", "Text(tool.name)", 'console.print(f"{x}")'):
        assert past_the_function(source), "the test itself finds it"
