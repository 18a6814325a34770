"""Which interpreter servers run code without a question, and what works with a server of another kind."""

import re
from pathlib import Path

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.llm.scripted import says, wants
from task.permissions.decisions import PermissionMode
from task.permissions.gate import Grants, PolicyGate
from task.permissions.policy import DEFAULT_POLICY
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool
from task.tools.toolbox import Pending, Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.core_peers import answers, peer
from tests.support.documents import SALES, csv_bytes
from tests.support.interpreter import TOKEN, running_interpreter
from tests.support.mcp_processes import PNG, foreign_interpreter
from tests.support.product import Product, product


async def called(url: str, token: str | None = TOKEN) -> Message | Pending:
    """The outcome of a call of code under the product's own rules."""
    tool = await PythonCodeInterpreterTool.create("http://127.0.0.1:9", url, token=token)
    gate = PolicyGate(DEFAULT_POLICY, Grants(lambda: 0.0), PermissionMode.DEFAULT, "anna", "c")
    toolbox = Toolbox([tool], gate)
    try:
        call = ToolCall("c", FunctionCall("execute_code", '{"code": "6 * 7"}'))
        [result] = await toolbox.call_all([call], RecordingChoice(), CALLER)
    finally:
        await tool.close()
    return result


@pytest.mark.fault("interpreter: an interpreter server of another kind, or without a sandbox")
async def test_only_code_of_a_server_with_our_sandbox_and_token_runs_without_a_question(tmp_path: Path) -> None:
    with running_interpreter(tmp_path, "--bare", "--spares", "0") as server:
        result = await called(server.url)
    assert isinstance(result, Message)
    assert "42" in result.text()

    with running_interpreter(tmp_path, "--bare", "--spares", "0", "--unsafe") as server:
        assert isinstance(await called(server.url), Pending)

    with foreign_interpreter("plain") as server:
        assert isinstance(await called(server.url), Pending)

    async with peer(answers(200, {"sandbox_tier": "landlock"})) as site:
        assert isinstance(await called(f"{site.url}/mcp", token=None), Pending)

    result = await called("http://127.0.0.1:9/mcp")
    assert isinstance(result, Message)
    assert "cannot be reached" in result.text()


@pytest.mark.fault("interpreter: an interpreter server of another kind, or without a sandbox")
@pytest.mark.parametrize(
    ("status", "health"),
    [(200, {"sandbox_tier": "none"}), (200, {"sandbox_tier": "mine"}), (200, {"sandbox_tier": ["landlock"]}), (200, {}),
     (500, {"sandbox_tier": "landlock"}), (302, {"sandbox_tier": "landlock"})],
)  # fmt: skip
async def test_whatever_does_not_name_a_tier_of_ours_is_asked_about(status: int, health: dict[str, object]) -> None:
    async with peer(answers(status, health)) as site:
        assert isinstance(await called(f"{site.url}/mcp"), Pending)


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
