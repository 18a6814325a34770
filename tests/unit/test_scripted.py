"""The scripted model plays replies from code or YAML, and the demo is labelled as one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import Message, Role, assistant, system, tool_message, user
from task.errors import ProviderError, SettingsError
from task.llm.base import (
    Accumulator,
    Delta,
    Finish,
    ModelOptions,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
    Usage,
)
from task.llm.scripted import Reply, ScriptedModel, says, wants
from tests.support.clock import FakeClock

ASK = [user("25*47?")]
DEMO = Path(str(files("task.local.core") / "demo.yaml"))


def offered(*names: str) -> list[ToolSchema]:
    return [{"type": "function", "function": {"name": name, "description": "", "parameters": {}}} for name in names]


def demo() -> ScriptedModel:
    return ScriptedModel.from_file(DEMO, sleep=FakeClock(runs=True).sleep)


async def deltas(
    model: ScriptedModel, messages: Sequence[Message] = ASK, tools: Sequence[ToolSchema] = ()
) -> list[Delta]:
    return [delta async for delta in model.stream(messages, tools, ModelOptions())]


async def answer(
    model: ScriptedModel, messages: Sequence[Message] = ASK, tools: Sequence[ToolSchema] = ()
) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    accumulator = Accumulator()
    for delta in await deltas(model, messages, tools):
        accumulator.add(delta)
    calls = accumulator.message().tool_calls
    return accumulator.text, [(call.name, json.loads(call.function.arguments)) for call in calls]


async def test_replies_are_played_in_order_and_requests_are_kept() -> None:
    model = ScriptedModel(wants("calculator", expression="25*47"), says("11", "75"))
    tools = offered("calculator")
    assert await answer(model, ASK, tools) == ("", [("calculator", {"expression": "25*47"})])
    longer = [*ASK, assistant("1175")]
    assert await deltas(model, longer) == [TextDelta("11"), TextDelta("75"), Finish("stop")]
    assert model.requests == [ASK, longer]
    assert model.tools == [tools, []]
    assert len(model.options) == 2


async def test_several_calls_and_text_share_one_reply() -> None:
    model = ScriptedModel(says("Let me look.") & wants("f", x=1) & wants("g") & wants("f", x=2))
    played = await deltas(model)
    calls = [delta for delta in played if isinstance(delta, ToolCallDelta)]
    assert [(call.index, call.name, call.arguments) for call in calls] == [
        (0, "f", {"x": 1}), (1, "g", {}), (2, "f", {"x": 2})
    ]  # fmt: skip
    assert len({call.id for call in calls} - {None}) == 3
    assert (played[0], played[-1]) == (TextDelta("Let me look."), Finish("tool_calls"))


async def test_pauses_usage_reasoning_and_the_finish_reason_are_played() -> None:
    clock = FakeClock(runs=True)
    reply = says("a", "b", "c", pause=0.5, reasoning="hm", usage=Usage(7, 2)) & Reply((Finish("length"),))
    played = await deltas(ScriptedModel(reply, sleep=clock.sleep))
    assert played == [
        ReasoningDelta("hm"), TextDelta("a"), TextDelta("b"), TextDelta("c"), Usage(7, 2), Finish("length")
    ]  # fmt: skip
    assert clock.slept == [0.5, 0.5]


async def test_an_error_interrupts_the_answer_at_its_place() -> None:
    model = ScriptedModel(says("Half") & Reply((ProviderError("gone", status_code=500),)))
    stream = aiter(model.stream(ASK, [], ModelOptions()))
    assert await anext(stream) == TextDelta("Half")
    with pytest.raises(ProviderError, match="gone"):
        await anext(stream)


async def test_a_script_without_a_further_reply_reports_an_error() -> None:
    with pytest.raises(ProviderError, match="no reply number 1"):
        await deltas(ScriptedModel())


async def test_then_answers_after_the_last_reply() -> None:
    model = ScriptedModel(says("first"), then=lambda messages, tools: says(messages[-1].text()))
    assert [(await answer(model))[0] for _ in range(3)] == ["first", "25*47?", "25*47?"]


SCRIPT = """
name: calculator-script
replies:
  - {text: [One, " moment."], pause: 0.5, call: [{tool: calculator, arguments: {expression: 25*47}}], usage: [3, 1]}
rules:
  - {when: {last: tool}, text: "It is $results", by_word: true, finish: length}
  - {when: {last: user, tool: calculator}, call: [{tool: calculator, arguments: {expression: 1+1, digits: 2}}]}
"""


async def test_a_script_file_contains_replies_and_rules(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(SCRIPT, encoding="utf-8")
    model = ScriptedModel.from_file(path, sleep=FakeClock(runs=True).sleep)
    assert model.name == "calculator-script"
    assert await answer(model) == ("One moment.", [("calculator", {"expression": "25*47"})])
    assert await answer(model, ASK, offered("calculator")) == ("", [("calculator", {"expression": "1+1", "digits": 2})])
    played = await deltas(model, [Message(Role.TOOL, "1175", tool_call_id="c", name="calculator")])
    assert played[0] == TextDelta("It ")
    assert played[-1] == Finish("length")
    with pytest.raises(ProviderError, match="no rule of the script calculator-script fits"):
        await deltas(model)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name: x\nrules: [{txt: hi}]", "script.yaml: rules.0.txt: Extra inputs are not permitted"),
        ("rules: []", "script.yaml: name: Field required"),
        ("name: [", "script.yaml cannot be read as a script"),
        (None, "script.yaml cannot be read as a script"),
    ],
)
def test_a_malformed_script_is_one_line_that_names_the_fault(tmp_path: Path, text: str | None, fault: str) -> None:
    path = tmp_path / "script.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        ScriptedModel.from_file(path)
    assert str(caught.value).startswith(fault)
    assert "\n" not in str(caught.value)


ATTACHED = """What is in these?

Attached files:
- report (1).csv (text/csv): files/BUCKET/report%20(1).csv
- notes (text/plain): files/BUCKET/notes
- tool.exe (application/x-msdownload): files/BUCKET/tool.exe"""


async def test_the_demo_calls_the_tool_that_fits_each_attachment() -> None:
    model = demo()
    assert model.name == "scripted-demo"
    assert await answer(model, [system("x"), user(ATTACHED)], offered("file_content_extraction_tool")) == ("", [
        ("file_content_extraction_tool", {"file_url": "files/BUCKET/report%20(1).csv"}),
        ("file_content_extraction_tool", {"file_url": "files/BUCKET/notes"}),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        (ATTACHED, ["calculator"]),
        ("Attached files:\n- tool.exe (application/x-msdownload): files/B/tool.exe", ["file_content_extraction_tool"]),
        ("What is 25*47? calculator!", ["calculator", "file_content_extraction_tool"]),
    ],
)
async def test_the_demo_lists_the_tools_if_none_fits_whatever_the_words(text: str, tools: list[str]) -> None:
    said, calls = await answer(demo(), [user(text)], offered(*tools))
    assert calls == []
    assert "I am a scripted demo, not a real model" in said
    assert all(f"`{tool}`" in said for tool in tools)
    assert all(name in said for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DIAL_ENDPOINT"))


async def test_the_demo_shows_what_came_back_quoted_and_cut() -> None:
    call = wants("file_content_extraction_tool")
    model = ScriptedModel(call)
    accumulator = Accumulator()
    for delta in await deltas(model):
        accumulator.add(delta)
    (asked,) = accumulator.message().tool_calls
    table = "category,sales\n" + "A,1700\n" * 1000
    history = [user(ATTACHED), accumulator.message(), tool_message(asked, table)]
    played = await deltas(demo(), history)
    said = "".join(delta.text for delta in played if isinstance(delta, TextDelta))
    assert "> category,sales\n> A,1700\n" in said
    assert "[cut, 7045 characters in all]" in said
    assert "I am a scripted demo, not a real model" in said
    assert len(said) < 4000
    assert len(played) > 100
