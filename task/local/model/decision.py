"""Decisions as constrained JSON: the schema of the next step, and the parsing of the model's JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from task.conversation.messages import Message, Role, ToolCall
from task.llm.base import ToolSchema
from task.local.model.frames import PAGES, is_table
from task.local.model.prompt import CARDS
from task.local.model.table_step import READER, RUNNER, names_of, with_names
from task.local.model.tables import closed_object

REPLY = "reply"
CALLS = 4  # in one step
TEXT = 300  # characters of an argument of the product's own tools
LONG = frozenset({"code"})
DEPTH = 5  # of nested arguments
SHORT = 4000  # characters of a file that needs no search in it
FILE_ARGUMENTS = frozenset({"file_url", "file_urls"})
PAGE_ARGUMENTS = frozenset({"url", "urls"})
_FILE = re.compile(r"(?<![\w/])files/[^\s)\]\"'|]+")
_PAGE = re.compile(r"https?://[^\s)\]\"'|<>]+")
_NOTHING = re.compile(r"\s*+[-+]?+[\d.,]*+\s*+")  # to calculate: the model knows the answer
_KEPT = ("type", "enum", "const", "required")
_Json = dict[str, Any]


@dataclass(slots=True)
class Decision:
    """The calls to make, or the prose that the model wrote instead; with neither it wants to reply."""

    calls: list[tuple[str, _Json]] = field(default_factory=list[tuple[str, _Json]])
    prose: str = ""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The files and web pages that the conversation names: the only ones a call may refer to."""

    files: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    def of(self, argument: str) -> tuple[str, ...] | None:
        """The allowed values of an argument of this name; None: any."""
        if argument in FILE_ARGUMENTS:
            return self.files
        return self.pages if argument in PAGE_ARGUMENTS else None

    def unread(self, messages: Sequence[Message]) -> Addresses:
        """Without the short files that the conversation contains completely: there is nothing left to look up.

        Except tables, from which each question is computed.
        """
        calls = {call.id: call for message in messages for call in message.tool_calls if call.name == READER}
        last = max((place for place, message in enumerate(messages) if message.role is Role.USER), default=0)
        whole = (
            (place, str(_arguments(calls[message.tool_call_id]).get("file_url")))
            for place, message in enumerate(messages)
            if message.tool_call_id in calls and len(message.text()) <= SHORT and PAGES not in message.text()
        )
        read = {url for place, url in whole if place > last or not is_table(url)}
        return replace(self, files=tuple(url for url in self.files if url not in read))


def _arguments(call: ToolCall) -> _Json:
    return cast("_Json", orjson.loads(call.function.arguments))


def addresses_in(messages: Sequence[Message]) -> Addresses:
    texts = [message.text() for message in messages]
    files = dict.fromkeys(url for text in texts for url in _FILE.findall(text))
    pages = dict.fromkeys(url.rstrip(".,;:!?") for text in texts for url in _PAGE.findall(text))
    return Addresses(tuple(files), tuple(pages))


def decision_schema(tools: Sequence[ToolSchema], addresses: Addresses, tool_choice: Any) -> _Json | None:
    """The JSON schema of the next step; None where no call is possible.

    A tool that needs a file or a page is offered only where there is one. `tool_choice` is OpenAI's.
    """
    forced = tool_choice["function"]["name"] if isinstance(tool_choice, Mapping) else None
    offered = [tool["function"] for tool in tools if forced in (None, tool["function"]["name"])]
    calls = [_call(function, addresses) for function in offered if _possible(function, addresses)]
    if not calls:
        return None
    # Calls of one tool only: otherwise a small model makes the second tool's call before it has the first one's result.
    wanted = [{"type": "array", "minItems": 1, "maxItems": CALLS, "items": call} for call in calls]
    if forced is not None or tool_choice == "required":
        return {"anyOf": wanted}
    reply = closed_object({"tool": {"const": REPLY}}, ["tool"])
    return {"anyOf": [{"type": "array", "minItems": 1, "maxItems": 1, "items": reply}, *wanted]}


def decisions_of(text: str, tools: Sequence[ToolSchema], messages: Sequence[Message], decision: Decision) -> None:
    """Parse the model's JSON into `decision`, without calls that already have a result in this turn.

    Where a program names a file by its address, that is replaced by the file's name in the working directory.
    """
    try:
        steps: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        decision.prose = "" if text.lstrip()[:1] in ("[", "{") else text.strip()
        return
    names = {str(tool["function"]["name"]) for tool in tools}
    before, files = made(messages), names_of(addresses_in(messages).files, messages)
    for step in cast("list[Any]", steps if isinstance(steps, list) else [steps]):
        fields = cast("_Json", step) if isinstance(step, dict) else {}
        name, arguments = str(fields.get("tool")), fields.get("arguments")
        if name not in names or not isinstance(arguments, dict):
            continue
        given = cast("_Json", arguments)
        if name == "calculator" and _NOTHING.fullmatch(str(given.get("expression", ""))):
            continue
        if name == RUNNER:
            given["code"] = with_names(str(given.get("code", "")), files)
        if (name, given) not in (*decision.calls, *before):
            decision.calls.append((name, given))


def made(messages: Sequence[Message]) -> list[tuple[str, _Json]]:
    """The calls since the last question."""
    last = max((place for place, message in enumerate(messages) if message.role is Role.USER), default=0)
    calls = (call for message in messages[last:] for call in message.tool_calls)
    return [(call.name, _arguments(call)) for call in calls]


def _call(function: Mapping[str, Any], addresses: Addresses) -> _Json:
    name = str(function["name"])
    schema = function.get("parameters") or {}
    parameters = _simple(schema, addresses, DEPTH, schema)
    arguments = closed_object(parameters.get("properties", {}), parameters.get("required", []))
    if card := CARDS.get(name):
        shown = {key: value for key, value in arguments["properties"].items() if key in card.arguments}
        for key, value in shown.items():
            if key in card.patterns:
                shown[key] = value | {"pattern": card.patterns[key]}
            elif value.get("type") == "string" and key not in LONG:  # small models repeat themselves endlessly
                shown[key] = value | {"maxLength": TEXT}
        arguments = closed_object(shown, arguments["required"])
    return closed_object({"tool": {"const": name}, "arguments": arguments}, ["tool", "arguments"])


def _possible(function: Mapping[str, Any], addresses: Addresses) -> bool:
    required = (function.get("parameters") or {}).get("required") or ()
    return all(addresses.of(name) != () for name in required)


def _simple(schema: Mapping[str, Any], addresses: Addresses, depth: int, root: Mapping[str, Any]) -> _Json:
    if depth == 0:
        return {}
    if reference := schema.get("$ref"):
        found: Any = root
        for key in str(reference).removeprefix("#/").split("/"):
            found = found.get(key, {}) if isinstance(found, Mapping) else {}
        return _simple(cast("Mapping[str, Any]", found), addresses, depth - 1, root)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return {"anyOf": [_simple(option, addresses, depth - 1, root) for option in options]}
    simple = {key: schema[key] for key in _KEPT if key in schema}
    if "items" in schema:
        simple["items"] = _simple(schema["items"], addresses, depth - 1, root)
    if properties := schema.get("properties"):
        kept = {
            name: _one_of(known, value) if (known := addresses.of(name)) else _simple(value, addresses, depth - 1, root)
            for name, value in properties.items()
        }
        simple |= closed_object(kept, schema.get("required") or ())
    return simple


def _one_of(known: Sequence[str], schema: Mapping[str, Any]) -> _Json:
    one: _Json = {"enum": list(known)}
    many = schema.get("type") == "array"
    return {"type": "array", "minItems": 1, "maxItems": len(known), "items": one} if many else one
