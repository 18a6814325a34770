"""Calls of one tool, without a loop around them."""

import json
from typing import Any

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.output.sinks import StageProcessor
from task.tools.base import BaseTool
from task.tools.models import Caller, ToolCallParams
from tests.support.choices import RecordingChoice


def call_of(name: str, arguments: dict[str, Any] | str) -> ToolCall:
    """A call with the given arguments, or with this very text in their place."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall("call_1", FunctionCall(name, text))


def caller_of(name: str, conversation: str = "chat", api_key: str = "") -> Caller:
    """A user in a conversation, by default with a key of the user's own name."""

    async def principal() -> str:
        return name

    return Caller(api_key or name, principal, conversation)


def params_of(call: ToolCall, *, api_key: str = "key", choice: RecordingChoice | None = None) -> ToolCallParams:
    """What the toolbox would give the tool; the stage is the last one of the choice."""
    choice = choice or RecordingChoice()
    return ToolCallParams(call, StageProcessor.open_stage(choice), choice, api_key, "conversation")


async def called(
    tool: BaseTool, *, api_key: str = "key", choice: RecordingChoice | None = None, **arguments: Any
) -> Message:
    """The tool's answer to a call with these arguments."""
    return await tool.execute(params_of(call_of(tool.name, arguments), api_key=api_key, choice=choice))
