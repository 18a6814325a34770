"""Code runs without a question only on a server of our own that confines it."""

from __future__ import annotations

from pathlib import Path

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.permissions.decisions import PermissionMode
from task.permissions.gate import Grants, PolicyGate
from task.permissions.policy import DEFAULT_POLICY
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool
from task.tools.toolbox import Pending, Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.core_peers import answers, peer
from tests.support.interpreter import TOKEN, running_interpreter
from tests.support.mcp_processes import foreign_interpreter

CALL = ToolCall("c", FunctionCall("execute_code", '{"code": "6 * 7"}'))
CORE = "http://127.0.0.1:9"


async def called(url: str, token: str | None = TOKEN) -> Message | Pending:
    """The outcome of a call of code under the product's own rules."""
    tool = await PythonCodeInterpreterTool.create(CORE, url, token=token)
    gate = PolicyGate(DEFAULT_POLICY, Grants(lambda: 0.0), PermissionMode.DEFAULT, "anna", "c", lambda: 0.0)
    toolbox = Toolbox([tool], gate)
    try:
        [result] = await toolbox.call_all([CALL], RecordingChoice(), CALLER)
    finally:
        await tool.close()
    return result


async def test_code_in_our_sandbox_runs_without_a_question(tmp_path: Path) -> None:
    with running_interpreter(tmp_path, "--bare", "--spares", "0") as server:
        result = await called(server.url)
    assert isinstance(result, Message)
    assert "42" in result.text()


@pytest.mark.fault("interpreter: an interpreter server of another kind, or without a sandbox")
async def test_code_without_a_sandbox_is_asked_about(tmp_path: Path) -> None:
    with running_interpreter(tmp_path, "--bare", "--spares", "0", "--unsafe") as server:
        assert isinstance(await called(server.url), Pending)


@pytest.mark.fault("interpreter: an interpreter server of another kind, or without a sandbox")
async def test_a_server_of_another_kind_is_asked_about() -> None:
    with foreign_interpreter("plain") as server:
        assert isinstance(await called(server.url), Pending)


@pytest.mark.fault("interpreter: an interpreter server of another kind, or without a sandbox")
@pytest.mark.parametrize(
    ("status", "health"),
    [(200, {"sandbox_tier": "none"}), (200, {"sandbox_tier": "mine"}), (200, {"sandbox_tier": ["landlock"]}), (200, {}),
     (500, {"sandbox_tier": "landlock"}), (302, {"sandbox_tier": "landlock"})],
)  # fmt: skip
async def test_whatever_does_not_name_a_tier_of_ours_is_asked_about(status: int, health: dict[str, object]) -> None:
    async with peer(answers(status, health)) as site:
        assert isinstance(await called(f"{site.url}/mcp"), Pending)


async def test_a_tier_that_a_server_without_our_token_names_counts_for_nothing() -> None:
    async with peer(answers(200, {"sandbox_tier": "landlock"})) as site:
        assert isinstance(await called(f"{site.url}/mcp", token=None), Pending)


async def test_a_server_that_is_down_is_not_asked_about() -> None:
    result = await called("http://127.0.0.1:9/mcp")
    assert isinstance(result, Message)
    assert "cannot be reached" in result.text()
