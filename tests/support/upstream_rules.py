"""What a real OpenAI-compatible server refuses in a request, so that an invalid history fails a test at once."""

import json
import re
from typing import Any

_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_ROLES = {"system", "developer", "user", "assistant", "tool"}


def fault_of(body: dict[str, Any]) -> str | None:
    """The first thing wrong with a request, in the server's words; None: it is valid."""
    return _body_fault(body) or _tools_fault(body) or _history_fault(body["messages"])


def _body_fault(body: dict[str, Any]) -> str | None:
    if not body.get("messages"):
        return "[] is too short - 'messages'"
    if nulls := [name for name, value in body.items() if value is None]:
        return f"null in {', '.join(nulls)}"
    if body.get("stream_options") and not body.get("stream"):
        return "'stream_options' is only allowed when 'stream' is enabled"
    return None


def _tools_fault(body: dict[str, Any]) -> str | None:
    tools = body.get("tools")
    if tools is None:
        alone = [name for name in ("tool_choice", "parallel_tool_calls") if name in body]
        return f"'{alone[0]}' is only allowed when 'tools' are specified" if alone else None
    if not tools:
        return "[] is too short - 'tools'"
    names = [tool["function"]["name"] for tool in tools]
    if wrong := [name for name in names if not _NAME.match(name)]:
        return f"Invalid 'tools': name {wrong[0]!r} does not match '^[a-zA-Z0-9_-]+$'"
    return "Invalid 'tools': a name is used twice" if len(set(names)) < len(names) else None


def _history_fault(messages: list[dict[str, Any]]) -> str | None:
    open_calls: list[str] = []
    for message in messages:
        role = message.get("role")
        if role not in _ROLES:
            return f"Invalid value: {role!r} - role"
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            if not isinstance(message.get("content"), str):
                return "the content of a tool message must be a string"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return _unanswered(open_calls)
        if fault := _message_fault(message):
            return fault
        open_calls = [call["id"] for call in message.get("tool_calls", ())]
    return _unanswered(open_calls) if open_calls else None


def _unanswered(calls: list[str]) -> str:
    return f"'tool_calls' must be followed by tool messages; no answer to: {', '.join(calls)}"


def _message_fault(message: dict[str, Any]) -> str | None:
    calls = message.get("tool_calls")
    if calls is None:
        return None if message.get("content") is not None else f"content of a {message['role']} message is missing"
    if not calls:
        return "[] is too short - 'messages.tool_calls'"
    ids = [call["id"] for call in calls]
    if not all(ids) or len(set(ids)) < len(ids):
        return "every tool call needs an id of its own"
    return next((fault for call in calls if (fault := _call_fault(call["function"]))), None)


def _call_fault(function: dict[str, Any]) -> str | None:
    if not _NAME.match(function["name"]):
        return f"Invalid function name {function['name']!r}"
    try:
        fits = isinstance(json.loads(function["arguments"]), dict)
    except (TypeError, json.JSONDecodeError):
        fits = False
    return None if fits else "function arguments must be the JSON text of an object"
