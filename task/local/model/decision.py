"""Decisions as constrained JSON: the schema of the next step, the parsing of the model's JSON, and attached files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

import orjson

from task.conversation.inputs import file_names
from task.conversation.messages import Message, Role, ToolCall
from task.llm.base import ToolSchema
from task.llm.schemas import simple_schema
from task.local.model.prompt import CARDS, READER, RUNNER

REPLY = "reply"
PAGES = "**Page #"  # below a text with several pages
CALLS = 4  # in one step
MOST_FILES = 4  # that are read at once
TEXT = 300  # characters of an argument of the product's own tools
SHORT = 4000  # characters of a file that needs no search in it
_FILE = re.compile(r"(?<![\w/])files/[^\s)\]\"'|]+")
_PAGE = re.compile(r"https?://[^\s)\]\"'|<>]+")
_NOTHING = re.compile(r"\s*+[-+]?+[\d.,]*+\s*+")  # to calculate: the model knows the answer
_NOTE = re.compile(r"(?<!\n)\n*+Attached files:\n(?:- .*+(?:\n|\Z))++\s*+\Z")
_LISTED = re.compile(r"^- (.+) \([^()\n]*\): (\S+)$", re.MULTILINE)
_UNSAFE = re.compile(r"[^\w .-]")  # in a string literal
_Json = dict[str, Any]


@dataclass(slots=True)
class Decision:
    """The calls to make, or the prose that the model wrote instead; with neither it wants to reply."""

    calls: list[tuple[str, _Json]] = field(default_factory=list[tuple[str, _Json]])
    prose: str = ""


def addresses_in(messages: Sequence[Message]) -> dict[str, list[str]]:
    """The values that arguments of these names may have: the files and web pages that the conversation names."""
    texts = [message.text() for message in messages]
    files = list(dict.fromkeys(url for text in texts for url in _FILE.findall(text)))
    pages = list(dict.fromkeys(url.rstrip(".,;:!?") for text in texts for url in _PAGE.findall(text)))
    return {"file_url": files, "file_urls": files, "url": pages, "urls": pages}


def unread(addresses: Mapping[str, list[str]], messages: Sequence[Message]) -> dict[str, list[str]]:
    """The addresses without the short files that the conversation contains completely: nothing is left to look up.

    Except tables, from which each question is computed.
    """
    last = last_question(messages)
    read = {
        url
        for place, url, text in readings(messages)
        if len(text) <= SHORT and PAGES not in text and (place > last or not is_table(url))
    }
    return {name: [url for url in known if url not in read] for name, known in addresses.items()}


def decision_schema(
    tools: Sequence[ToolSchema], addresses: Mapping[str, Sequence[str]], tool_choice: Any
) -> _Json | None:
    """The JSON schema of the next step; None where no call is possible.

    A tool that needs a file or a page is offered only where there is one. `tool_choice` is OpenAI's.
    """
    forced = tool_choice["function"]["name"] if isinstance(tool_choice, Mapping) else None
    functions = [tool["function"] for tool in tools if forced in (None, tool["function"]["name"])]
    calls: list[_Json] = []
    for name, parameters in ((str(one["name"]), simple_schema(one.get("parameters") or {})) for one in functions):
        if any(addresses.get(required) == [] for required in parameters.get("required", ())):
            continue
        arguments = _closed({"type": "object", "properties": {}} | parameters, addresses)
        if card := CARDS.get(name):
            shown = {key: value for key, value in arguments["properties"].items() if key in card.arguments}
            # Small models repeat themselves endlessly.
            limit = {"pattern": card.pattern} if card.pattern else {"maxLength": TEXT}
            for key, value in shown.items():
                if value.get("type") == "string" and key != "code":
                    shown[key] = value | limit
            arguments = closed_object(shown, arguments["required"])
        calls.append(closed_object({"tool": {"const": name}, "arguments": arguments}, ["tool", "arguments"]))
    if not calls:
        return None
    # Calls of one tool only: otherwise a small model makes the second tool's call before it has the first one's result.
    wanted = [{"type": "array", "minItems": 1, "maxItems": CALLS, "items": call} for call in calls]
    if forced is not None or tool_choice == "required":
        return {"anyOf": wanted}
    reply = closed_object({"tool": {"const": REPLY}}, ["tool"])
    return {"anyOf": [{"type": "array", "minItems": 1, "maxItems": 1, "items": reply}, *wanted]}


def closed_object(properties: Mapping[str, Any], required: Sequence[str]) -> _Json:
    """The JSON schema of an object with these properties only, the required ones first."""
    ordered = {name: properties[name] for name in sorted(properties, key=lambda name: name not in required)}
    known = [name for name in required if name in properties]
    return {"type": "object", "properties": ordered, "required": known, "additionalProperties": False}


def _closed(schema: Mapping[str, Any], addresses: Mapping[str, Sequence[str]]) -> _Json:
    # Only what a grammar can express; files and pages are those of the conversation.
    if options := schema.get("anyOf"):
        return {"anyOf": [_closed(option, addresses) for option in options]}
    closed = {key: schema[key] for key in ("type", "enum") if key in schema}
    if "items" in schema:
        closed["items"] = _closed(schema["items"], addresses)
    if "properties" in schema:
        properties: _Json = {}
        for name, value in schema["properties"].items():
            known = addresses.get(name)
            properties[name] = {"enum": known} if known else _closed(value, addresses)
            if known and value.get("type") == "array":
                properties[name] = {"type": "array", "minItems": 1, "maxItems": len(known), "items": {"enum": known}}
        closed |= closed_object(properties, schema.get("required", ()))
    return closed


def decision_of(text: str, tools: Sequence[ToolSchema], messages: Sequence[Message]) -> Decision:
    """What the model's JSON decides, without calls that already have a result in this turn.

    Where a program names a file by its address, that is replaced by the file's name in the working directory.
    """
    try:
        steps: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return Decision(prose="" if text.lstrip()[:1] in ("[", "{") else text.strip())
    decision, made = Decision(), calls_made(messages)
    names, files = {tool["function"]["name"] for tool in tools}, names_of(addresses_in(messages)["file_url"], messages)
    for step in cast("list[Any]", steps if isinstance(steps, list) else [steps]):
        fields = cast("_Json", step) if isinstance(step, dict) else {}
        name, given = str(fields.get("tool")), fields.get("arguments")
        if name not in names or not isinstance(given, dict):
            continue
        arguments = cast("_Json", given)
        if name == "calculator" and _NOTHING.fullmatch(str(arguments.get("expression", ""))):
            continue
        if name == RUNNER:
            arguments["code"] = with_names(str(arguments.get("code", "")), files)
        if (name, arguments) not in (*decision.calls, *made):
            decision.calls.append((name, arguments))
    return decision


def arguments_of(call: ToolCall) -> _Json:
    return cast("_Json", orjson.loads(call.function.arguments))


def readings(messages: Sequence[Message]) -> list[tuple[int, str, str]]:
    """What was read of files: the place of the result, the file's address, and the text."""
    calls = {call.id: call for message in messages for call in message.tool_calls if call.name == READER}
    return [
        (place, str(arguments_of(calls[message.tool_call_id]).get("file_url", "")), message.text())
        for place, message in enumerate(messages)
        if message.tool_call_id in calls
    ]


def last_question(messages: Sequence[Message]) -> int:
    """The place of the last message of the user."""
    return max((place for place, message in enumerate(messages) if message.role is Role.USER), default=0)


def calls_made(messages: Sequence[Message]) -> list[tuple[str, _Json]]:
    """The calls since the last question."""
    calls = (call for message in messages[last_question(messages) :] for call in message.tool_calls)
    return [(call.name, arguments_of(call)) for call in calls]


def is_table(name: str) -> bool:
    """Whether a file of this name may hold a table."""
    return name.lower().endswith((".csv", ".tsv", ".xlsx", ".json"))


def without_note(text: str) -> str:
    """A message's text without the list of its attached files."""
    return _NOTE.sub("", text)


def attached_tables(messages: Sequence[Message], *, earlier: bool = False) -> list[str]:
    """The addresses of the tables attached to the question that has just been asked.

    `earlier`: of those attached last, where the question has no attachments.
    """
    asked = messages[-1]
    if asked.role is not Role.USER or (earlier and _NOTE.search(asked.text())):
        return []
    for message in reversed(messages) if earlier else (asked,):
        found = [url for url, title in _attached(message).items() if is_table(title)]
        if found and message.role is Role.USER:
            return found[:MOST_FILES]
    return []


def _attached(message: Message) -> dict[str, str]:
    note = _NOTE.search(message.text())
    return {url: title for title, url in _LISTED.findall(note[0]) if url.startswith("files/")} if note else {}


def names_of(urls: Iterable[str], messages: Sequence[Message]) -> dict[str, str]:
    """The name under which a program finds each of the files."""
    titles = {url: title for message in messages for url, title in _attached(message).items()}
    names = dict(zip(titles, file_names((title, url) for url, title in titles.items()), strict=True))
    return {url: names.get(url) or unquote(url.rsplit("/", 1)[-1]) for url in urls}


def with_names(code: str, names: Mapping[str, str]) -> str:
    """The program with the files' names in place of their addresses; no name can end the string that it stands in."""
    for url in sorted(names, key=len, reverse=True):
        code = code.replace(url, _UNSAFE.sub(lambda mark: f"\\U{ord(mark[0]):08x}", names[url]))
    return code
