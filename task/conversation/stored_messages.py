"""Read messages back from JSON data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from task.conversation.messages import FunctionCall, Message, Role, ToolCall

TOOL_RESULT = "tool_result"  # the framework's name for the role `tool`


def restored(item: Mapping[str, Any]) -> Message:
    """The message that stands there in OpenAI's form or in the framework's documented one.

    Raises:
        KeyError, TypeError, ValueError: it is neither.
    """
    role = Role.TOOL if item["role"] == TOOL_RESULT else Role(item["role"])
    content = item.get("content")
    if content is not None and not isinstance(content, str | list):
        raise TypeError("the content of a message is text or a list of parts")
    if role is Role.TOOL and not (isinstance(item["tool_call_id"], str) and item["tool_call_id"]):
        raise TypeError("a tool's result names its call")
    calls = tuple(map(_call, item.get("tool_calls") or ()))
    return Message(
        role,
        content or None if calls else content,
        tool_calls=calls,
        tool_call_id=item.get("tool_call_id"),
        name=item.get("tool_name") or item.get("name"),
        reasoning_content=item.get("reasoning_content"),
    )


def _call(item: Mapping[str, Any]) -> ToolCall:
    return ToolCall(str(item["id"]), FunctionCall(str(item["function"]["name"]), str(item["function"]["arguments"])))
