"""The scripted model plays replies, and the demo is labelled as one."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from task.conversation.messages import Message, Role, assistant, system, user
from task.llm.base import Accumulator, Delta, Finish, ModelOptions, ReasoningDelta, TextDelta, ToolSchema, Usage
from task.llm.scripted import Reply, ScriptedModel, demo, demo_reply, says, wants
from tests.support.clock import FakeClock

ASK = [user("25*47?")]


def offered(*names: str) -> list[ToolSchema]:
    return [{"type": "function", "function": {"name": name, "description": "", "parameters": {}}} for name in names]


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


async def test_pauses_usage_reasoning_and_the_finish_reason_are_played() -> None:
    clock = FakeClock(runs=True)
    reply = says("a", "b", "c", pause=0.5, reasoning="hm", usage=Usage(7, 2)) & Reply((Finish("length"),))
    played = await deltas(ScriptedModel(reply, sleep=clock.sleep))
    assert played == [
        ReasoningDelta("hm"), TextDelta("a"), TextDelta("b"), TextDelta("c"), Usage(7, 2), Finish("length")
    ]  # fmt: skip
    assert clock.slept == [0.5, 0.5]


ATTACHED = """What is in these?

Attached files:
- report (1).csv (text/csv): files/BUCKET/report%20(1).csv
- notes (text/plain): files/BUCKET/notes
- tool.exe (application/x-msdownload): files/BUCKET/tool.exe"""


def shown(reply: Reply) -> str:
    return "".join(event.text for event in reply.events if isinstance(event, TextDelta))


async def test_the_demo_calls_the_tool_that_fits_each_attachment() -> None:
    assert demo().name == "scripted-demo"
    assert await answer(demo(), [system("x"), user(ATTACHED)], offered("file_content_extraction_tool")) == ("", [
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
def test_the_demo_lists_the_tools_if_none_fits_whatever_the_words(text: str, tools: list[str]) -> None:
    reply = demo_reply([user(text)], offered(*tools))
    assert reply.calls == ()
    words = ["I am a scripted demo, not a real model", *(f"`{tool}`" for tool in tools)]
    assert all(part in shown(reply) for part in (*words, "OPENAI_API_KEY", "OPENAI_BASE_URL", "DIAL_ENDPOINT"))


def test_the_demo_shows_what_came_back_quoted_and_cut() -> None:
    table = "category,sales\n" + "A,1700\n" * 1000
    result = Message(Role.TOOL, table, tool_call_id="c", name="file_content_extraction_tool")
    reply = demo_reply([user(ATTACHED), assistant("Let me see."), result], ())
    said = shown(reply)
    assert "> category,sales\n> A,1700\n" in said
    assert "[cut, 7045 characters in all]" in said
    assert "I am a scripted demo, not a real model" in said
    assert len(said) < 4000
    assert len(reply.events) > 100, "word by word"
