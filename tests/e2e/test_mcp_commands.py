"""What `doctor` and `tools` say of MCP servers: those that answer, those that do not, and why."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from task.commands.tools import interpreter_check, list_with_servers
from task.settings import Settings, load_settings
from tests.support.interpreter import TOKEN, RunningInterpreter, running_interpreter
from tests.support.mcp_processes import ServerProcess, foreign_interpreter, mcp_peer
from tests.support.ports import free_port
from tests.support.up import dial_agent


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


async def test_doctor_reports_where_code_runs_and_in_which_sandbox(
    interpreter: RunningInterpreter, tmp_path: Path
) -> None:
    known = settings(tmp_path, PYINTERPRETER_MCP_URL=interpreter.url, AGENT_MCP_TOKEN=TOKEN)
    row = await interpreter_check(known)
    assert row.state == "ok"
    assert row.found.startswith(f"answers at {interpreter.url}; sandbox: ")


async def test_doctor_distinguishes_an_unreachable_interpreter_from_a_misconfigured_one(
    interpreter: RunningInterpreter, peer: ServerProcess, tmp_path: Path
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/mcp"
    away = await interpreter_check(settings(tmp_path, PYINTERPRETER_MCP_URL=nobody))
    refused = await interpreter_check(settings(tmp_path, PYINTERPRETER_MCP_URL=interpreter.url, AGENT_MCP_TOKEN="no"))
    other = await interpreter_check(settings(tmp_path, PYINTERPRETER_MCP_URL=peer.url))
    with foreign_interpreter("plain") as server:
        foreign = await interpreter_check(settings(tmp_path, PYINTERPRETER_MCP_URL=server.url))
    own = await interpreter_check(settings(tmp_path))
    assert (away.state, away.found) == ("note", f"{nobody}: The server of the Python interpreter cannot be reached")
    assert (refused.state, "AGENT_MCP_TOKEN" in refused.fix) == ("bad", True)
    assert "refused the credentials (status 401)" in refused.found
    assert (other.state, "has no tool execute_code, only echo" in other.found) == ("bad", True)
    assert (foreign.state, foreign.found) == ("ok", f"answers at {server.url}; a foreign server")
    assert (own.state, own.found) == ("ok", "is started by `dial-agent up`")


async def test_tools_are_listed_with_their_sources_and_the_servers_that_do_not_answer(
    peer: ServerProcess, tmp_path: Path
) -> None:
    servers: list[dict[str, Any]] = [
        {"name": "peer", "url": peer.url, "tools": ["echo", "write"]},
        {"name": "gone", "url": f"http://127.0.0.1:{free_port()}/mcp"},
        {"name": "library", "url": "toolset:library"},
    ]
    tools, sentences = await list_with_servers(settings(tmp_path, AGENT_MCP_SERVERS=json.dumps(servers)))
    sources = {tool.name: tool.source for tool in tools}
    assert (sources["calculator"], sources["read_file_lines"], sources["echo"]) == ("agent", "agent", "MCP peer")
    assert next(tool for tool in tools if tool.name == "write").effects == ["network", "read", "write"]
    assert sentences == [
        "The server gone cannot be reached.",
        "The tools of library depend on each caller's own key.",
        "`dial-agent up` adds Python and web search, with servers of its own.",
    ]


async def test_the_command_prints_the_table_and_the_sentences(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/mcp"
    printed = await dial_agent(tmp_path, "tools", DDG_MCP_URL=nobody, PYINTERPRETER_MCP_URL=nobody, COLUMNS="120")
    assert printed.code == 0, printed.err
    assert "execute_code" in printed.out
    assert "The server search cannot be reached." in printed.out
    assert "No Python: " in printed.out
