"""The model's own words about a call: asked for in the schema, removed from the arguments before the call."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

from task.conversation.messages import FunctionCall, ToolCall
from task.permissions.icerc import Brief

_ASKED = {
    "intent": "Why you make this call, in one sentence for the user who may have to approve it",
    "expected_outcome": "What will be different afterwards, in one sentence for the user",
}
_WHOLE = ("icerc", "icerc_full_text")


def with_brief(schema: dict[str, Any]) -> dict[str, Any]:
    """The tool's schema with two optional texts for the user; the tool's own parameters keep their names."""
    function = schema["function"]
    parameters = function["parameters"]
    properties = parameters.get("properties", {})
    asked = {name: {"type": "string", "description": text} for name, text in _ASKED.items() if name not in properties}
    return {**schema, "function": {**function, "parameters": {**parameters, "properties": {**properties, **asked}}}}


def split_brief(call: ToolCall, parameters: dict[str, Any]) -> tuple[ToolCall, Brief]:
    """The call with the tool's own arguments only, and the model's words about it."""
    text = call.function.arguments
    if not any(f'"{name}"' in text for name in (*_ASKED, *_WHOLE)):
        return call, Brief()
    try:
        arguments = json.loads(text)
    except ValueError:
        return call, Brief()
    own = parameters.get("properties", {})
    if not isinstance(arguments, dict):
        return call, Brief()
    given = cast("dict[str, Any]", arguments)
    extra = {name: given.pop(name) for name in (*_ASKED, *_WHOLE) if name in given and name not in own}
    if not extra:
        return call, Brief()
    whole = next((Brief.read(extra[name]) for name in _WHOLE if name in extra), Brief())
    single = Brief.read(extra)
    brief = Brief(single.intent or whole.intent, single.expected_outcome or whole.expected_outcome)
    return replace(call, function=FunctionCall(call.name, json.dumps(given, ensure_ascii=False))), brief
