"""Write a chat completion request in OpenAI's shape, with a provider's differences applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from task.conversation.messages import Message, Role
from task.llm.base import ModelOptions, ToolSchema
from task.llm.profiles import Profile

_OPTIONS = ("temperature", "top_p", "stop", "seed", "reasoning_effort")
_SYSTEM = Role.SYSTEM  # looked for in the enum it would cost more than the rest of the question
_ONLY_WITH_TOOLS = ("tool_choice", "parallel_tool_calls")


def request_body(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions, profile: Profile
) -> bytes:
    """The request as JSON. Nothing that is None is sent: DIAL Core 0.25 answers nulls with an empty 400."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_wire_message(message, profile) for message in messages],
        "stream": True,
    }
    if profile.streams_usage:
        body["stream_options"] = {"include_usage": True}
    if tools:
        body["tools"] = tools
    return orjson.dumps(body | _parameters(options, profile, with_tools=bool(tools)))


def _parameters(options: ModelOptions, profile: Profile, *, with_tools: bool) -> dict[str, Any]:
    told = {name: getattr(options, name) for name in _OPTIONS}
    told |= {profile.max_tokens_field: options.max_tokens, "tool_choice": options.tool_choice}
    told |= options.extra
    withheld = profile.refused if with_tools else profile.refused.union(_ONLY_WITH_TOOLS)
    return {name: value for name, value in told.items() if value is not None and name not in withheld}


def _wire_message(message: Message, profile: Profile) -> dict[str, Any]:
    wire = message.as_dict()
    if message.tool_calls:
        _dress_calls(wire, message, profile)
    elif message.role is _SYSTEM:
        wire["role"] = profile.system_role.value
    elif message.custom_content and message.role is Role.USER:
        # Only a DIAL deployment is asked with files beside the text.
        wire["custom_content"] = {"attachments": [item.as_dict() for item in message.custom_content.attachments]}
    return wire


def _dress_calls(wire: dict[str, Any], message: Message, profile: Profile) -> None:
    if profile.empty_content == "text" and message.content is None:
        wire["content"] = ""
    reasoning = message.reasoning_content
    if profile.replays_reasoning == "always" or (profile.replays_reasoning == "told" and reasoning):
        wire["reasoning_content"] = reasoning or ""
    if profile.call_extra:
        wire["tool_calls"] = [{**call, **profile.call_extra} for call in wire["tool_calls"]]
