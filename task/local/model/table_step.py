"""The step after a question with tables: they are read at once, then computed with, then the result is described."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import orjson

from task.conversation.file_names import file_names
from task.conversation.messages import Message, Role, ToolCall
from task.local.model.frames import Frame, frames_of, is_table
from task.local.model.tables import program, result_pattern, rows_pattern, variable

READER, RUNNER, CHART = "file_content_extraction_tool", "execute_code", "chart"
MOST_FILES = 4  # that are read at once
ASK = "Next step as JSON."
CORRECT = "The call failed. Next step as JSON: the call without that mistake."
DESCRIBE = "Now answer the question with this result, in one short sentence in the user's language."
_NOTE = re.compile(r"(?<!\n)\n*+Attached files:\n(?:- .*+(?:\n|\Z))++\s*+\Z")
_LISTED = re.compile(r"^- (.+) \([^()\n]*\): (\S+)$", re.MULTILINE)
_NOTHING = "**Output:**\n```\n(nothing was printed)\n```"  # before a table that is the result
_UNSAFE = re.compile(r"[^\w .-]")  # in a string literal
_FAILED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?::|$)", re.MULTILINE)
_Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableStep:
    """The step after tables were read: they, and the conversation that ends with their description and the question.

    `computed` is whether a program over them has already run without an error, whose result the conversation then ends
    with; `ask` is the last sentence.
    """

    frames: tuple[Frame, ...]
    messages: tuple[Message, ...]
    question: str
    computed: bool
    ask: str

    def schema(self) -> _Json:
        """The JSON schema of this step: a selection, a program, or a reply."""
        # A program that is written freely over all rows would forget the filter as well.
        rows = {"type": "string", "pattern": rows_pattern(self.frames, self.question)}
        result = {"type": "string", "pattern": result_pattern(self.frames)}
        steps = (
            {"rows": rows, "result": result},
            {"rows": rows, CHART: {"type": "string"}},
            {"reply": {"const": True}},
        )
        return {"anyOf": [_object(step) for step in steps]}

    def calls(self, text: str) -> list[tuple[str, _Json]]:
        """The call in the JSON that the schema allows; none for a reply, or for JSON that was cut off."""
        try:
            step: _Json = orjson.loads(text)
        except orjson.JSONDecodeError:
            return []
        if "rows" not in step:
            return []
        lines = program(step["rows"], step.get(CHART) or step["result"], self.frames)
        return [(RUNNER, {"code": f"{_loading(self.frames)}\n{lines}"})]


def table_step(messages: Sequence[Message], tools: Iterable[str]) -> TableStep | None:
    """The next step when the last result is a table that was read, or a program over it; None otherwise."""
    last = messages[-1]
    call = _call_of(last, messages) if last.role is Role.TOOL and RUNNER in tools else None
    if call is None or call.name not in (READER, RUNNER):
        return None
    asked = max(
        place for place, message in enumerate(messages) if message.role is not Role.TOOL and not message.tool_calls
    )
    frames = tuple(frame for message in messages[asked:] for frame in _read(message, messages))
    loading = _loading(frames)
    if not frames or (call.name == RUNNER and not _code(call).startswith(loading)):
        return None
    question = _NOTE.sub("", messages[asked].text())
    failed = call.name == RUNNER and _FAILED.search(last.text()) is not None
    computed = call.name == RUNNER and not failed
    described = "\n".join(f"{variable(number)}: {frame}" for number, frame in enumerate(frames))
    parts = [question] if computed else [described, question]
    if call.name == RUNNER:
        parts.append(f"{_chosen(_code(call), loading)}\n\nResult:\n{_result(last, call)}")
    ask = DESCRIBE if computed else CORRECT if failed else ASK
    shown = (*_said(messages[:asked]), replace(messages[asked], content="\n\n".join(parts)))
    return TableStep(frames, shown, question, computed, ask)


def _said(messages: Sequence[Message]) -> Iterator[Message]:
    # What an earlier question's tools returned would only take time to read.
    for message in messages:
        if message.role is Role.USER:
            yield replace(message, content=_NOTE.sub("", message.text()))
        elif message.role is not Role.TOOL and not message.tool_calls:
            yield message


def _chosen(code: str, loading: str) -> str:
    # What the model has chosen, without the columns that were computed for it
    lines = code.removeprefix(loading).strip()
    return lines[max(lines.find("rows = "), 0) :]


def _result(result: Message, call: ToolCall) -> str:
    # Without the program in front of its output
    return result.text().rpartition(_code(call))[2].lstrip("`\n").removeprefix(_NOTHING).strip()


def unread_tables(messages: Sequence[Message], tools: Iterable[str]) -> list[str]:
    """The addresses of the tables attached to the question when it has just been asked; they are read first."""
    return _tables_of(messages[-1]) if _is_asked(messages, tools) else []


def earlier_tables(messages: Sequence[Message], tools: Iterable[str]) -> list[str]:
    """The addresses of the tables attached last when a question without attachments has just been asked."""
    if not _is_asked(messages, tools) or _NOTE.search(messages[-1].text()):
        return []
    return next((found for message in reversed(messages) if (found := _tables_of(message))), [])


def _is_asked(messages: Sequence[Message], tools: Iterable[str]) -> bool:
    return messages[-1].role is Role.USER and {READER, RUNNER} <= set(tools)


def _tables_of(message: Message) -> list[str]:
    note = _NOTE.search(message.text()) if message.role is Role.USER else None
    listed = _LISTED.findall(note[0]) if note else ()
    return [url for title, url in listed if is_table(title) and url.startswith("files/")][:MOST_FILES]


def names_of(urls: Iterable[str], messages: Sequence[Message]) -> dict[str, str]:
    """The name under which a program finds each of the files."""
    noted = (note[0] for message in messages if (note := _NOTE.search(message.text())))
    titles = {url: title for note in noted for title, url in _LISTED.findall(note) if url.startswith("files/")}
    names = dict(zip(titles, file_names((title, url) for url, title in titles.items()), strict=True))
    return {url: names.get(url) or unquote(url.rsplit("/", 1)[-1]) for url in urls}


def with_names(code: str, names: dict[str, str]) -> str:
    """The program with the files' names in place of their addresses; no name can end the string that it stands in."""
    for url in sorted(names, key=len, reverse=True):
        code = code.replace(url, _UNSAFE.sub(lambda mark: f"\\U{ord(mark[0]):08x}", names[url]))
    return code


def _loading(frames: Sequence[Frame]) -> str:
    uses_json = any("json.loads" in frame.loaded for frame in frames)
    imports = [*(["import json", "from pathlib import Path"] if uses_json else []), "import pandas as pd"]
    return "\n".join([*imports, *(frame.program(variable(number)) for number, frame in enumerate(frames))])


def _object(properties: _Json) -> _Json:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _read(result: Message, messages: Sequence[Message]) -> list[Frame]:
    call = _call_of(result, messages) if result.role is Role.TOOL else None
    if call is None or call.name != READER:
        return []
    url = str(orjson.loads(call.function.arguments).get("file_url", ""))
    return frames_of(names_of([url], messages)[url], result.text())


def _code(call: ToolCall) -> str:
    return str(orjson.loads(call.function.arguments).get("code", ""))


def _call_of(result: Message, messages: Sequence[Message]) -> ToolCall | None:
    calls = (call for message in reversed(messages) for call in message.tool_calls)
    return next((call for call in calls if call.id == result.tool_call_id), None)
