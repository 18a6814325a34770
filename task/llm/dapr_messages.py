"""Convert between our messages and those of Dapr's Conversation API, in the generated types of its gRPC service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, cast

import orjson
from dapr.proto import api_v1
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.struct_pb2 import Struct

from task.conversation.messages import Message, Role
from task.errors import ProviderError
from task.llm.base import Delta, Finish, ModelOptions, ModelWarning, TextDelta, ToolCallDelta, ToolSchema, Usage
from task.llm.failures import MALFORMED, unsendable
from task.llm.schemas import flat_schema, simple_schema

_CHOICES = ("auto", "none", "required")


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
    offered: list[api_v1.ConversationTools] = []
    for function in (tool["function"] for tool in tools):
        described = api_v1.ConversationToolsFunction(
            name=function["name"],
            description=function.get("description"),
            parameters=_struct(function.get("parameters") or {}),
        )
        offered.append(api_v1.ConversationTools(function=described))
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    request = api_v1.ConversationRequestAlpha2(
        name=component,
        inputs=[
            api_v1.ConversationInputAlpha2(
                messages=[_wire_message(item, names) for item in part], scrub_pii=scrubbed or None
            )
            for scrubbed, part in groupby(messages, key=lambda message: message.scrub_pii)
        ],
        tools=offered,
        tool_choice=cast("str | None", choice) if tools else None,
        temperature=options.temperature or None,
        max_tokens=options.max_tokens,
        scrub_pii=bool(options.extra.get("scrub_pii")) or None,
    )
    limited = [ModelWarning("max_tokens has no effect before Dapr 1.19")] if options.max_tokens is not None else []
    return request, [*limited, *_with_format(request, options)]


def _with_format(request: api_v1.ConversationRequestAlpha2, options: ModelOptions) -> list[ModelWarning]:
    warning = "response_format had no effect: Dapr carries "
    match options.extra.get("response_format"):
        case None | {"type": "text"}:
            return []
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)} as given}:
            found = flat_schema(cast("dict[str, Any]", schema))
            if found is None:
                return [ModelWarning(f"{warning}no schema with alternatives or without types")]
            more = {key: given[key] for key in ("name", "description", "strict") if given.get(key) is not None}
            request.response_format.CopyFrom(_struct({**found, **more}))
            return []
        case _:
            return [ModelWarning(f"{warning}schemas only")]


def answer_deltas(response: api_v1.ConversationResponseAlpha2, tools: Sequence[ToolSchema]) -> list[Delta]:
    """All outputs and choices of an answer as the deltas of one message.

    Raises:
        ProviderError: the answer has no output.
    """
    choices = [choice for output in response.outputs for choice in output.choices]
    if not choices:
        raise ProviderError("Dapr's answer has no output.", code=MALFORMED)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    deltas: list[Delta] = []
    if text := "\n".join(choice.message.content for choice in choices if choice.message.content):
        deltas.append(TextDelta(text))
    calls = [call for choice in choices for call in choice.message.tool_calls]
    for number, call in enumerate(calls):
        made = call.function
        arguments = with_integers(made.arguments, schemas.get(made.name, {}))
        deltas.append(ToolCallDelta(number, call.id or None, made.name, arguments))
    # Each output repeats the usage of the whole answer.
    used = next((output.usage for output in response.outputs if output.HasField("usage")), None)
    if used is not None:
        cached, reasoning = used.prompt_tokens_details.cached_tokens, used.completion_tokens_details.reasoning_tokens
        deltas.append(Usage(used.prompt_tokens, used.completion_tokens, cached, reasoning))
    reasons = {choice.finish_reason for choice in choices}
    # Providers that give no reason make it "unknown"; a call that did not come is no reason.
    other = min(reasons - {"", "unknown", "tool_calls"}, default="stop")
    return [*deltas, Finish("length" if "length" in reasons else "tool_calls" if calls else other)]


def with_integers(arguments: str, schema: Mapping[str, Any]) -> str:
    """A call's arguments with the whole numbers again that became floats on the way, where the schema wants them."""
    try:
        found = orjson.loads(arguments)
        mended = _mended(found, simple_schema(schema))
        return arguments if repr(mended) == repr(found) else orjson.dumps(mended).decode()
    except (ValueError, TypeError, RecursionError):  # no JSON, or numbers or a depth that none can have
        return arguments


def _struct(content: Any) -> Struct:
    try:
        return ParseDict(content, Struct())
    except ParseError as error:
        raise unsendable("A tool's schema or the response format is nested too deeply for Dapr.") from error


def _wire_message(message: Message, names: Mapping[str, str]) -> api_v1.ConversationMessage:
    text = message.text()
    content = [api_v1.ConversationMessageContent(text=text)]
    match message.role:
        case Role.SYSTEM | Role.DEVELOPER:  # Dapr makes a user's message of a developer's
            of_system = api_v1.ConversationMessageOfSystem(name=message.name, content=content)
            return api_v1.ConversationMessage(of_system=of_system)
        case Role.USER:
            parts = message.content if isinstance(message.content, list) else []
            if any(part.get("type") == "image_url" for part in parts):
                raise unsendable("Dapr cannot carry pictures. Leave them out, or use another provider.")
            of_user = api_v1.ConversationMessageOfUser(name=message.name, content=content)
            return api_v1.ConversationMessage(of_user=of_user)
        case Role.ASSISTANT:
            calls: list[api_v1.ConversationToolCalls] = []
            for call in message.tool_calls:
                made = api_v1.ConversationToolCallsOfFunction(name=call.name, arguments=call.function.arguments)
                calls.append(api_v1.ConversationToolCalls(id=call.id, function=made))
            of_assistant = api_v1.ConversationMessageOfAssistant(
                name=message.name, content=content if text else [], tool_calls=calls
            )
            return api_v1.ConversationMessage(of_assistant=of_assistant)
        case Role.TOOL:  # without a part, the sidecar would leave the result out
            name = names.get(message.tool_call_id or "") or message.name or ""
            of_tool = api_v1.ConversationMessageOfTool(tool_id=message.tool_call_id, name=name, content=content)
            return api_v1.ConversationMessage(of_tool=of_tool)


def _mended(value: Any, schema: Mapping[str, Any]) -> Any:
    options: list[Mapping[str, Any]] = [schema, *schema.get("anyOf", ())]
    if isinstance(value, float):
        given = [option.get("type", []) for option in options]
        kinds = {kind for each in given for kind in ([each] if isinstance(each, str) else each)}
        return int(value) if value.is_integer() and "integer" in kinds and "number" not in kinds else value
    if isinstance(value, dict):
        properties = {name: part for option in options for name, part in option.get("properties", {}).items()}
        items = cast("dict[str, Any]", value)
        return {name: _mended(item, properties.get(name, {})) for name, item in items.items()}
    if isinstance(value, list):
        part: Mapping[str, Any] = next((option["items"] for option in options if option.get("items")), {})
        return [_mended(item, part) for item in cast("list[Any]", value)]
    return value
