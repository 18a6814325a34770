"""The scripted model plays replies."""

import json
from collections.abc import Sequence
from typing import Any

from task.conversation.messages import Message, assistant, user
from task.llm.base import Accumulator, Delta, Finish, ModelOptions, ReasoningDelta, TextDelta, ToolSchema, Usage
from task.llm.scripted import Reply, ScriptedModel, says, wants
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
