"""The step after a question with tables: they are read at once, then computed with, then the result is described."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import orjson

from task.conversation.inputs import file_names
from task.conversation.messages import Message, Role, ToolCall
from task.local.model.frames import Frame, frames_of, is_table
from task.local.model.tables import closed_object, program, result_pattern, rows_pattern, variable

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
        return {"anyOf": [closed_object(step, list(step)) for step in steps]}

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
    calls = {call.id: call for message in messages for call in message.tool_calls}
    call = calls.get(messages[-1].tool_call_id or "")
    if call is None or RUNNER not in tools or call.name not in (READER, RUNNER):
        return None
    texts = [
        place for place, message in enumerate(messages) if message.role is not Role.TOOL and not message.tool_calls
    ]
    asked, result = texts[-1], messages[-1].text()
    frames = _frames(messages, asked, calls)
    code, loading = str(orjson.loads(call.function.arguments).get("code", "")), _loading(frames)
    if not frames or (call.name == RUNNER and not code.startswith(loading)):
        return None
    question = _NOTE.sub("", messages[asked].text())
    failed = call.name == RUNNER and _FAILED.search(result) is not None
    computed = call.name == RUNNER and not failed
    parts = [] if computed else ["\n".join(f"{variable(number)}: {frame}" for number, frame in enumerate(frames))]
    parts.append(question)
    if call.name == RUNNER:
        # What the model has chosen, and what came of it, without the loading and the columns computed for the choice
        chosen = code[max(code.find("\nrows = "), len(loading)) :].strip()
        output = result.rpartition(code)[2].lstrip("`\n").removeprefix(_NOTHING).strip()
        parts.append(f"{chosen}\n\nResult:\n{output}")
    # What an earlier question's tools returned would only take time to read.
    said = (replace(messages[place], content=_NOTE.sub("", messages[place].text())) for place in texts[:-1])
    shown = (*said, replace(messages[asked], content="\n\n".join(parts)))
    return TableStep(frames, shown, question, computed, DESCRIBE if computed else CORRECT if failed else ASK)


def _frames(messages: Sequence[Message], asked: int, calls: Mapping[str, ToolCall]) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    for message in messages[asked:]:
        call = calls.get(message.tool_call_id or "")
        if call and call.name == READER:
            url = str(orjson.loads(call.function.arguments).get("file_url", ""))
            frames += frames_of(names_of([url], messages)[url], message.text())
    return tuple(frames)


def _loading(frames: Sequence[Frame]) -> str:
    uses_json = any("json.loads" in frame.loaded for frame in frames)
    imports = [*(["import json", "from pathlib import Path"] if uses_json else []), "import pandas as pd"]
    return "\n".join([*imports, *(frame.program(variable(number)) for number, frame in enumerate(frames))])


def unread_tables(messages: Sequence[Message], tools: Iterable[str]) -> list[str]:
    """The addresses of the tables attached to the question when it has just been asked; they are read first."""
    is_asked = messages[-1].role is Role.USER and {READER, RUNNER} <= set(tools)
    return _tables_of(messages[-1]) if is_asked else []


def earlier_tables(messages: Sequence[Message], tools: Iterable[str]) -> list[str]:
    """The addresses of the tables attached last when a question without attachments has just been asked."""
    is_asked = messages[-1].role is Role.USER and {READER, RUNNER} <= set(tools)
    if not is_asked or _NOTE.search(messages[-1].text()):
        return []
    return next((found for message in reversed(messages) if (found := _tables_of(message))), [])


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
