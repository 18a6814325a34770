"""Models behind a Dapr sidecar, which is a process of its own."""

from __future__ import annotations

from typing import Any

from task.conversation.messages import user
from task.llm.base import Finish, ModelOptions, ModelWarning, TextDelta, ToolCallDelta, Usage
from task.llm.dapr import DaprServer
from task.llm.scripted import says, wants
from tests.support.dapr import dapr_peer

COUNT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Counts.",
        "parameters": {"type": "object", "properties": {"to": {"type": "integer", "minimum": 1}}},
    },
}


async def test_an_answer_comes_as_one_delta() -> None:
    async with dapr_peer(wants("count", to=5), says("one ", "two")) as peer:
        server = DaprServer(peer.address)
        model = server.chat_model("any")
        call = [delta async for delta in model.stream([user("Count.")], [COUNT], ModelOptions())]
        text = [delta async for delta in model.stream([user("Count.")], [], ModelOptions(max_tokens=9))]
        await server.close()
    assert call == [ToolCallDelta(0, "call_00000001", "count", '{"to": 5}'), Usage(20, 5), Finish("tool_calls")]
    warning = ModelWarning("max_tokens had no effect: this version of Dapr does not carry it")
    assert text == [warning, TextDelta("one two"), Usage(20, 5), Finish("stop")]
