"""The tools of a workspace: what the gate sees is what happens, and the model gets text whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.tools.toolbox import Toolbox
from task.tools.workspace.framework import framework_tools
from task.tools.workspace.root import Workspace
from task.tools.workspace.tools import FsEditTool, FsReadTool, FsWriteTool, workspace_tools
from tests.support.choices import CALLER, RecordingChoice
from tests.support.tool_calls import call_of, called


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "project").mkdir()
    with Workspace(tmp_path / "project") as made:
        yield made


async def test_the_tools_do_what_they_say(workspace: Workspace) -> None:
    tools = {tool.name: tool for tool in workspace_tools(workspace)}
    steps: list[tuple[str, dict[str, Any], str]] = [
        ("fs_read", {"path": "missing"}, "ERROR: read: not found: missing"),
        ("fs_write", {"path": "a\0b", "content": ""}, "ERROR: write: a path has no NUL characters: a\0b"),
        ("fs_write", {"path": "a.py", "content": "x = 1\n"}, "wrote a.py (1 lines, 6 bytes)"),
        ("fs_read", {"path": "a.py"}, "x = 1\n"),
        ("fs_edit", {"path": "a.py", "old_text": "1", "new_text": "2"}, "edited a.py (line 1)"),
        ("fs_list", {}, "a.py"),
        ("fs_search", {"pattern": "x"}, "a.py:1: x = 2\n[1 lines]"),
    ]
    for name, arguments, text in steps:
        message = await called(tools[name], **arguments)
        assert (message.text(), message.failed) == (text, text.startswith("ERROR"))


async def test_a_long_text_comes_in_pages_that_say_how_to_go_on(workspace: Workspace) -> None:
    lines = [f"line {number:05}" for number in range(1, 10_001)]
    workspace.write("long.txt", "\n".join(lines).encode())
    first = (await called(FsReadTool(workspace), path="long.txt")).text()
    assert len(first) < 31_000
    assert first.endswith("line 02727\n[lines 1-2727 of 10000; go on with first_line=2728]")
    last = (await called(FsReadTool(workspace), path="long.txt", first_line=9_999)).text()
    assert last == "line 09999\nline 10000\n[lines 9999-10000 of 10000]"
    workspace.write("wide.txt", b"x" * 100_000)
    wide = (await called(FsReadTool(workspace), path="wide.txt")).text()
    assert len(wide) < 31_000
    assert wide.endswith("\n[the beginning of line 1 of 1; the line is longer]")


def test_the_gate_sees_the_real_path(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "src").mkdir()
    (workspace.path / "link").symlink_to("src")
    (workspace.path / "out").symlink_to(tmp_path)
    tool = FsReadTool(workspace)
    for given, seen in [
        ("link/../link/a.py", "src/a.py"),
        (f"{workspace.path}/link/a.py", "src/a.py"),
        ("/", "."),
        ("../other", str(tmp_path / "other")),
        ("out/secret", str(tmp_path / "secret")),
    ]:
        arguments = tool.parse(call_of("fs_read", {"path": given}))
        access = tool.workspace_access(arguments)
        assert access is not None
        assert (access.root, access.paths) == (str(workspace.path), (seen,))
    assert tool.parse(call_of("fs_read", {"path": "link/a.py"})) == {"path": "src/a.py"}
    unreachable = tool.workspace_access({"path": "a\0b"})
    assert unreachable is not None
    assert unreachable.paths == ()


@pytest.mark.fault("workspace: several changes of one file in one step")
async def test_the_changes_of_one_step_come_one_after_another(workspace: Workspace) -> None:
    workspace.write("a.txt", b"0")
    toolbox = Toolbox([FsEditTool(workspace), FsWriteTool(workspace)])
    calls = [
        ToolCall(str(n), FunctionCall("fs_edit", f'{{"path": "a.txt", "old_text": "{n}", "new_text": "{n},{n + 1}"}}'))
        for n in range(20)
    ]
    messages = await asyncio.wait_for(toolbox.call_all(calls, RecordingChoice(), CALLER), 60)
    assert all(isinstance(message, Message) and not message.failed for message in messages)
    assert workspace.read("a.txt").decode() == ",".join(map(str, range(21)))


async def test_a_person_sees_the_text_of_results_that_are_json_for_the_model(workspace: Workspace) -> None:
    (workspace.path / "picture.png").write_bytes(b"\x89PNG\xff")
    choice, toolbox = RecordingChoice(), Toolbox(framework_tools(workspace))
    calls = [
        call_of("file_write", {"file_path": "a.txt", "content": "It rains."}),
        call_of("file_read", {"file_path": "a.txt"}),
        call_of("file_read", {"file_path": "picture.png"}),
        call_of("file_read", {"file_path": "missing"}),
    ]
    for call in calls:
        await toolbox.call_all([call], choice, CALLER)
    shown = [stage.content.partition("## Response:\n\n")[2].split("\n")[0] for stage in choice.stages]
    assert shown == ["wrote 9 bytes", "It rains.", "(not text)", "ERROR: read: not found: missing"]
