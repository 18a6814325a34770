"""PYINTERPRETER_MCP_URL of another kind of server: what works where a rule allows it, and what does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from task.llm.scripted import says, wants
from tests.support.core_peers import answers, peer
from tests.support.documents import SALES, csv_bytes
from tests.support.mcp_processes import PNG, foreign_interpreter
from tests.support.product import Product, product

CODE = "print(6 * 7)"
ALLOWED = {"rules": [{"action": "allow", "tool": "execute_code", "trusted": True}]}
LIMITS = "attached files are not in its working directory, and it may forget variables between two calls."


def tool_result(p: Product) -> str:
    """What the model learns of the call."""
    return str(p.upstream.requests[1].messages[-1]["content"])


@pytest.mark.fault("interpreter: an interpreter server of another kind")
async def test_a_server_with_the_documented_tool_runs_code_and_its_picture_is_attached(tmp_path: Path) -> None:
    with foreign_interpreter("plain") as server:
        turns = [wants("execute_code", code=CODE), says("42")]
        async with product(*turns, tmp_path=tmp_path, permissions=ALLOWED, pyinterpreter_mcp_url=server.url) as p:
            file = await p.reader.upload("report.csv", csv_bytes(SALES), "text/csv")
            answer = await p.reader.ask("What is six times seven?", file)
            [picture] = answer.attachments.values()
            status, content = await p.reader.get(picture["url"])
    assert tool_result(p).startswith(f"## Execution Result\n\n```python\n{CODE}\n```\n\n**Note:** ")
    assert LIMITS in tool_result(p)
    assert "**Output:**\n```\n42\n```" in tool_result(p)
    assert f"**Generated Files:**\n- [{picture['title']}]({picture['url']})" in answer.stages[0].content
    assert (status, content, answer.stages[0].status) == (200, PNG, "completed")


async def test_the_server_learns_how_long_the_code_may_run(tmp_path: Path) -> None:
    with foreign_interpreter("echo") as server:
        turns = [wants("execute_code", code=CODE), says("Done.")]
        limits = {"tool_seconds": 60}
        async with product(
            *turns, tmp_path=tmp_path, permissions=ALLOWED, limits=limits, pyinterpreter_mcp_url=server.url
        ) as p:
            await p.reader.ask("What is six times seven?")
    [seconds] = re.findall(r'general-purpose-agent/seconds": ([\d.]+)', tool_result(p))
    assert 0 < float(seconds) < 60


@pytest.mark.system
async def test_a_server_with_its_own_sessions_runs_code_too(tmp_path: Path) -> None:
    with foreign_interpreter("sessions") as server:
        turns = [wants("execute_code", code=CODE), says("42")]
        async with product(*turns, tmp_path=tmp_path, permissions=ALLOWED, pyinterpreter_mcp_url=server.url) as p:
            answer = await p.reader.ask("What is six times seven?")
    assert ("42" in tool_result(p), LIMITS in tool_result(p)) == (True, True)
    assert answer.stages[0].status == "completed"


@pytest.mark.fault("interpreter: an interpreter server of another kind")
@pytest.mark.parametrize(
    ("kind", "code", "sentence"),
    [
        ("plain", "1 / 0", "ZeroDivisionError: division by zero"),
        ("other", CODE, "Unknown tool: execute_code"),
    ],
)
async def test_what_such_a_server_refuses_is_a_sentence(kind: str, code: str, sentence: str, tmp_path: Path) -> None:
    with foreign_interpreter(kind) as server:
        turns = [wants("execute_code", code=code), says("It did not work.")]
        async with product(*turns, tmp_path=tmp_path, permissions=ALLOWED, pyinterpreter_mcp_url=server.url) as p:
            answer = await p.reader.ask("Run it")
    assert sentence in tool_result(p)
    assert (answer.stages[0].status, answer.content) == ("failed", "It did not work.")


@pytest.mark.fault("interpreter: an interpreter server of another kind")
async def test_a_server_of_another_protocol_is_reported_in_a_sentence(tmp_path: Path) -> None:
    turns = [wants("execute_code", code=CODE), says("It did not work.")]
    async with (
        peer(answers(200, {"hello": "world"})) as site,
        product(*turns, tmp_path=tmp_path, permissions=ALLOWED, pyinterpreter_mcp_url=f"{site.url}/mcp") as p,
    ):
        answer = await p.reader.ask("Run it")
    assert "the Python interpreter answered in a way that cannot be understood" in tool_result(p)
    assert (answer.stages[0].status, answer.content) == ("failed", "It did not work.")
