"""What a call in a model's text looks like, and whether it is one of a tool that was offered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, cast

from task.conversation.messages import FunctionCall
from task.llm.base import ToolSchema

# How a call is written: how it begins, where it ends, and what it calls.
HEAD = 300  # characters within which a call must be recognisable as one
WRAPPERS = 10  # tags, fences and gaps in front of it
_Json = dict[str, Any]
_NAMES = ("name", "tool", "tool_name", "function", "function_name", "action")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_AROUND = frozenset({"id", "type", "index", "tool_call_id"})
_WHOLE = ("tool_calls", "tool_call", "function_call", "function")
_BRIEF = frozenset({"intent", "expected_outcome", "icerc", "icerc_full_text"})  # the toolbox takes them off a call
# The first words in the tags of Hermes, Qwen, Llama, Mistral, DeepSeek, Kimi, Granite, Command R and gpt-oss.
_TAGS = ("tool", "function", "python_tag", "START_ACTION", "END_ACTION", "channel", "call|", "eom_id", "im_end")
_SECTIONS = ("TOOL_CALLS", "TOOL_REQUEST", "END_TOOL_REQUEST", "tool_call", "tool_calls")
_WRONG = (ValueError, TypeError, RecursionError)
_WRAPPER = (
    r"\s+|(?P<fence>`{3,12}[ \t]{0,4}(?P<label>[\w+.-]{0,40})[^\n`]{0,40}\n)"
    rf"|(?P<mark><[/|｜]*(?:{'|'.join(map(re.escape, _TAGS))})[^<>\n]{{0,80}}>|\[/?(?:{'|'.join(_SECTIONS)})\])"
)
_BEFORE = re.compile(_WRAPPER)
_BETWEEN = re.compile(_WRAPPER + r"|[,;)\]}]+|`{3,12}(?=[^\s\w`+.-])")
_UNFINISHED = re.compile(r"`{1,2}|`{3,12}[ \t]{0,4}[\w+.-]{0,40}[^\n`]{0,40}|[<\[][/|｜]*+(?P<word>[^<>\[\]\n]{0,90})")


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of what may be a call in JSON, which begins at `start`.

    `name`: the tool's, where it stands in front of its arguments; `marked`: a tag announced the call; `fenced`: it
    stands in a code fence.
    """

    start: int
    name: str = ""
    marked: bool = False
    fenced: bool = False


class OfferedTools:
    """The tools of one request; only their calls are recognised, and only if the arguments fit."""

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._shapes: dict[str, _Json] = {
            tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools
        }
        names = sorted(self._shapes, key=len, reverse=True)
        objects = [f'{{"{key}":"{name}"' for key in _NAMES for name in names]
        objects += [f'{{"{key}":{{' for key in (*_ARGUMENTS, "function", "tool_call", "function_call")]
        objects += ['{"tool_calls":[{', '{"type":"function",', '{"id":"call_', '{"tool_call_id":']
        self._heads = (*objects, *(f"[{head}" for head in objects))
        any_name = "|".join(map(re.escape, names))
        self._named = re.compile(
            rf"[^{{\n]{{0,100}}?(?:\n\s*)?[\w.]{{0,14}}?(?<![\w-])({any_name})(?![\w-])[^{{]{{0,100}}?(?=\{{)"
        )
        names_, arguments = "|".join(_NAMES), "|".join(_ARGUMENTS)
        self._cut = re.compile(rf'"(?:{names_})"\s*:\s*"({any_name})"\s*,\s*"(?:{arguments})"\s*:\s*(?=\{{)')

    def opening(self, text: str, after: Opening | None = None) -> Opening | Literal["undecided"] | None:
        """What begins at the beginning of the text; "undecided" if its next characters decide.

        `after`: the call in front of the text, from which another one may be separated.
        """
        complete, text = len(text) >= HEAD, text[:HEAD]
        mark, place, fenced = 0 if after and after.marked else -1, 0, False
        for _ in range(WRAPPERS):
            if (found := (_BETWEEN if after else _BEFORE).match(text, place)) is None:
                break
            fenced = fenced or found["fence"] is not None
            if "tool" in (found["label"] or "") or (found["mark"] and "/" not in found["mark"]):
                mark = place
            elif mark == place:
                mark = found.end()
            place = found.end()
        else:
            return None
        squeezed = "".join(text[place:].split())
        if squeezed.startswith(self._heads):
            return Opening(place, "", mark >= 0, fenced)
        if mark >= 0 and (named := self._named.match(text, mark)):
            return Opening(named.end(), named[1], marked=True, fenced=fenced)
        begins = any(head.startswith(squeezed) for head in self._heads)
        if found := _UNFINISHED.fullmatch(text, place):
            word = found["word"] or ""
            begins = begins or any(
                word.startswith(tag) or tag.startswith(word) for tag in (*_TAGS, *_SECTIONS, "think")
            )
        return "undecided" if (mark >= 0 or begins) and not complete else None

    def calls(self, opening: Opening, text: str) -> list[FunctionCall]:
        """The calls in the whole text of the JSON; none if it is anything else."""
        try:
            value = _loaded(text)
            found = [(opening.name, value)] if opening.name else _calls_in(value)
            calls = [self._fitting(name, arguments) for name, arguments in found]
        except _WRONG:
            return []
        return [call for call in calls if call] if all(calls) else []

    def cut_off(self, opening: Opening, text: str) -> list[FunctionCall]:
        """The call whose text ended early, with its arguments so far; none if it was not yet certain to be one."""
        name, arguments = opening.name, text
        if not name:
            if (head := self._cut.search(text, 0, HEAD)) is None:
                return []
            name, arguments = head[1], text[head.end() :]
        try:
            call = self._fitting(name, json.JSONDecoder(strict=False).raw_decode(arguments)[0])
        except _WRONG:
            call = FunctionCall(name, arguments)
        return [call] if call else []

    def _fitting(self, name: str, arguments: Any) -> FunctionCall | None:
        name = name.removeprefix("functions.")
        if isinstance(arguments, str):
            arguments = _loaded(arguments or "{}")
        if name not in self._shapes or not isinstance(arguments, dict | None):
            return None
        shape = self._shapes[name]
        properties = cast("Mapping[str, Any]", shape.get("properties") or {})
        given = cast("_Json", arguments or {})
        typed = dict(given)
        for key, value in given.items():
            # Careless models write every value as text.
            wanted = properties.get(key)
            kinds = wanted.get("type") if isinstance(wanted, dict) else None
            if isinstance(value, str) and kinds is not None and "string" not in kinds:
                with suppress(*_WRONG):
                    typed[key] = _loaded(value)
        # A record that happens to be named like a tool has other fields.
        foreign = given.keys() - properties.keys() - _BRIEF
        lacking = set(shape.get("required") or ()) - given.keys()
        if properties and (lacking or (foreign and not shape.get("additionalProperties"))):
            return None
        return FunctionCall(name, json.dumps(typed, ensure_ascii=False))


def _loaded(text: str) -> Any:
    return json.loads(text, strict=False)  # small models write line breaks into strings


def _calls_in(value: Any) -> list[tuple[str, Any]]:
    # Of a list every item has to be a call.
    if isinstance(value, list):
        found = [_calls_in(item) for item in cast("list[Any]", value)]
        return list(chain.from_iterable(found)) if all(found) else []
    if not isinstance(value, dict):
        return []
    fields = {key: item for key, item in cast("_Json", value).items() if key not in _AROUND}
    match list(fields.items()):
        case [(key, item)] if key in _WHOLE and not isinstance(item, str):
            return _calls_in(item)
        case [(first, str(name)), (second, arguments)] if first in _NAMES and second in _ARGUMENTS:
            return [(name, arguments)]
        case [(first, arguments), (second, str(name))] if first in _ARGUMENTS and second in _NAMES:
            return [(name, arguments)]
        case _:
            return []
