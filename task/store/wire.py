"""Ids, and messages and other data as the JSON text of a column."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import orjson

from task.conversation.messages import Attachment, CustomContent, FunctionCall, Message, Role, ToolCall


def new_id(prefix: str, digits: int = 8) -> str:
    """An id such as `sess_1a2b3c4d`."""
    return f"{prefix}_{secrets.token_hex(digits // 2)}"


def packed(value: Any) -> str:
    """JSON text of data and dataclasses; what cannot be encoded (half a surrogate pair) becomes a question mark."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(_plain(value)).decode()


def unpacked(text: str) -> Any:
    return orjson.loads(text)


def message_data(message: Message) -> dict[str, Any]:
    """The message in OpenAI's shape, with our own fields beside it."""
    wire = message.as_dict()
    if message.reasoning_content:
        wire["reasoning_content"] = message.reasoning_content
    if message.custom_content is not None:
        wire["attachments"] = [attachment.as_dict() for attachment in message.custom_content.attachments]
    if message.failed:
        wire["failed"] = True
    return wire


def message_from(data: Mapping[str, Any]) -> Message:
    """The message that `message_data` made this of."""
    calls = tuple(
        ToolCall(call["id"], FunctionCall(call["function"]["name"], call["function"]["arguments"]))
        for call in data.get("tool_calls", ())
    )
    attachments = tuple(Attachment(**item) for item in data.get("attachments", ()))
    return Message(
        Role(data["role"]),
        data.get("content"),
        tool_calls=calls,
        tool_call_id=data.get("tool_call_id"),
        name=data.get("name"),
        reasoning_content=data.get("reasoning_content"),
        custom_content=CustomContent(attachments) if attachments else None,
        failed=data.get("failed", False),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**64 else str(value)  # orjson knows 64 bits
    return value if isinstance(value, (float, bool, type(None))) else str(value)
