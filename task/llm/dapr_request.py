"""Requests to Dapr's Conversation API and its answers, as the loop's messages and deltas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from dapr.proto import api_v1
from google.protobuf.json_format import ParseDict, ParseError

from task.conversation.messages import Message, Role
from task.errors import ProviderError
from task.llm.base import Delta, Finish, ModelOptions, ModelWarning, TextDelta, ToolCallDelta, ToolSchema, Usage
from task.llm.failures import MALFORMED, unsendable
from task.llm.schemas import asked_for_json, wanted_schema

_CHOICES = ("auto", "none", "required")
_KINDS: Mapping[Role, str] = {
    Role.SYSTEM: "of_system",
    Role.DEVELOPER: "of_system",  # the sidecar would make a user's message of it
    Role.USER: "of_user",
    Role.ASSISTANT: "of_assistant",
    Role.TOOL: "of_tool",
}
_EXACT = 2**53  # the first whole number above which floats have gaps


def conversation_request(
    component: str, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
) -> tuple[api_v1.ConversationRequestAlpha2, list[ModelWarning]]:
    """The request for one answer, and what it cannot carry of the options.

    Temperature 0 is the same as none to Dapr, and so is not sent. Dapr joins the inputs to one conversation: personal
    data is scrubbed from whole inputs.

    Raises:
        ProviderError: a message has a picture, or the tool choice names no tool.
    """
    choice = options.tool_choice
    if tools and choice is not None and choice not in _CHOICES:
        # Dapr passes the name of a tool on unchanged, which OpenAI refuses.
        wanted = choice["function"]["name"] if isinstance(choice, Mapping) else choice
        named = [tool for tool in tools if tool["function"]["name"] == wanted]
        if not named:
            listed = ", ".join(tool["function"]["name"] for tool in tools)
            raise unsendable(f"tool_choice {wanted!r} is none of {', '.join(_CHOICES)} and no tool. Tools: {listed}.")
        tools, choice = named, "required"
    warnings: list[ModelWarning] = []
    if (schema := wanted_schema(options)) is not None:  # Dapr drops most schemas without a word
        messages = asked_for_json(messages, schema)
        warnings.append(ModelWarning("response_format is part of the prompt only: Dapr does not enforce it"))
    if options.max_tokens is not None:
        warnings.append(ModelWarning("max_tokens has no effect before Dapr 1.19"))
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    request = api_v1.ConversationRequestAlpha2(
        name=component,
        inputs=[
            api_v1.ConversationInputAlpha2(
                messages=[_wire_message(item, names) for item in part], scrub_pii=scrubbed or None
            )
            for scrubbed, part in groupby(messages, key=lambda message: message.scrub_pii)
        ],
        tools=list(map(_wire_tool, tools)),
        tool_choice=cast("str | None", choice) if tools else None,
        temperature=options.temperature or None,
        max_tokens=options.max_tokens,
        scrub_pii=bool(options.extra.get("scrub_pii")) or None,
    )
    return request, warnings


def answer_deltas(response: api_v1.ConversationResponseAlpha2) -> list[Delta]:
    """All outputs and choices of an answer as the deltas of one message.

    Raises:
        ProviderError: the answer has no output.
    """
    choices = [choice for output in response.outputs for choice in output.choices]
    if not choices:
        raise ProviderError("Dapr's answer has no output.", code=MALFORMED)
    deltas: list[Delta] = []
    if text := "\n".join(choice.message.content for choice in choices if choice.message.content):
        deltas.append(TextDelta(text))
    calls = [call for choice in choices for call in choice.message.tool_calls]
    for number, call in enumerate(calls):
        made = call.function
        deltas.append(ToolCallDelta(number, call.id or None, made.name, with_integers(made.arguments)))
    # Each output repeats the usage of the whole answer.
    used = next((output.usage for output in response.outputs if output.HasField("usage")), None)
    if used is not None:
        cached, reasoning = used.prompt_tokens_details.cached_tokens, used.completion_tokens_details.reasoning_tokens
        deltas.append(Usage(used.prompt_tokens, used.completion_tokens, cached, reasoning))
    reasons = {choice.finish_reason for choice in choices}
    # Providers that give no reason make it "unknown"; a call that did not come is no reason.
    other = min(reasons - {"", "unknown", "tool_calls"}, default="stop")
    return [*deltas, Finish("length" if "length" in reasons else "tool_calls" if calls else other)]


def with_integers(arguments: str) -> str:
    """A call's arguments with the whole numbers again that became floats on the way."""

    def number(text: str) -> float:
        value = float(text)
        return int(value) if value.is_integer() and abs(value) < _EXACT else value

    try:
        found = json.loads(arguments, parse_float=number)
        as_sent = repr(found) == repr(json.loads(arguments))
        return arguments if as_sent else json.dumps(found, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):  # no JSON, or numbers or a depth that none can have
        return arguments


def _wire_tool(tool: ToolSchema) -> api_v1.ConversationTools:
    function = tool["function"]
    sent = {"name": function["name"], "description": function.get("description")}
    try:
        wire = {"function": {**sent, "parameters": function.get("parameters") or {}}}
        return ParseDict(wire, api_v1.ConversationTools())
    except ParseError as error:
        raise unsendable("A tool's schema is nested too deeply for Dapr.") from error


def _wire_message(message: Message, names: Mapping[str, str]) -> api_v1.ConversationMessage:
    parts = message.content if isinstance(message.content, list) else []
    if any(part.get("type") == "image_url" for part in parts):
        raise unsendable("Dapr cannot carry pictures. Leave them out, or use another provider.")
    text = message.text()
    # Without a part, the sidecar would leave a tool's result out.
    inner: dict[str, Any] = {"name": message.name, "content": [{"text": text}]}
    if message.role is Role.ASSISTANT:
        calls = ((call.id, {"name": call.name, "arguments": call.function.arguments}) for call in message.tool_calls)
        inner["tool_calls"] = [{"id": call_id, "function": made} for call_id, made in calls]
        inner["content"] = inner["content"] if text else []
    elif message.role is Role.TOOL:
        called = message.tool_call_id or ""
        inner |= {"tool_id": called, "name": names.get(called) or message.name or ""}
    kinds: dict[str, Any] = {_KINDS[message.role]: inner}
    return api_v1.ConversationMessage(**kinds)
