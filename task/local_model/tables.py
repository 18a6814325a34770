"""Lets a small model compute with a table it has just read: by a program over the file, not from memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

import orjson

from task.conversation.messages import Message, Role, ToolCall

READER, RUNNER = "file_content_extraction_tool", "execute_code"
LOADERS = {".csv": "read_csv", ".tsv": "read_table", ".xlsx": "read_excel", ".xls": "read_excel"}
# With other columns than the user's: a small model copies a program that fits, including its filter.
PROGRAM = """\
Tables are computed with by execute_code. With a file fruit.csv and its columns "fruit", "color", "price", "count", \
programs would be:
What do the red ones cost on average? -> import pandas as pd; df = pd.read_csv("fruit.csv"); \
print(df[df["color"] == "red"]["price"].mean())
Which fruit is the dearest? -> import pandas as pd; df = pd.read_csv("fruit.csv"); print(df.loc[df["price"].idxmax()])
What are all the pears worth? -> import pandas as pd; df = pd.read_csv("fruit.csv"); r = df[df["fruit"] == "pear"]; \
print((r["price"] * r["count"]).sum())
What is 8% of all prices? -> import pandas as pd; df = pd.read_csv("fruit.csv"); print(0.08 * df["price"].sum())
Here the file is {name}, read by pd.{loader}, and its columns are {columns}. The user asks: {question}
Next step as JSON: one execute_code call with the whole program for that, or [{{"tool":"reply"}}] when nothing is to \
be computed."""
CORRECT = (
    'The call failed. Next step as JSON: the call without that mistake, or [{"tool":"reply"}] when it cannot be fixed.'
)
SHOWN_VALUES = 6  # of a column of words: enough to see what a filter compares with
VALUE_CHARS = 30
QUESTION_CHARS = 600
_TABLE = re.compile(r"^\|(.+)\|\n\|[ |:-]+\|\n((?:\|.*\|(?:\n|$))+)", re.MULTILINE)
_CELLS = re.compile(r"(?<!\\)\|")
_NUMBER = re.compile(r"[-+]?[\d.,\s]*\d%?")
_NOTE = re.compile(r"(?<!\n)\n*+Attached files:\n(?:- .*+(?:\n|\Z))++\s*+\Z")
_LISTED = re.compile(r"^- (.+) \([^()\n]*\): (\S+)$", re.MULTILINE)
_FAILED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?::|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table's file, named as programs find it, and a description of its columns."""

    name: str
    columns: str


def after_a_result(messages: Sequence[Message], tools: Iterable[str]) -> str | None:
    """What to ask for when the last result is a table that was read, or a failed program; None otherwise."""
    last = messages[-1]
    if last.role is not Role.TOOL or RUNNER not in tools:
        return None
    call = _call_of(last, messages)
    if call is None:
        return None
    if call.name == RUNNER:
        return CORRECT if _FAILED.search(last.text()) else None
    table = _table(last.text(), call, messages) if call.name == READER else None
    if table is None:
        return None
    loader = LOADERS[PurePosixPath(table.name).suffix.lower()]
    return PROGRAM.format(name=table.name, loader=loader, columns=table.columns, question=_question(messages))


def names_of(urls: Iterable[str], messages: Sequence[Message]) -> dict[str, str]:
    """The name under which a program finds each of the files."""
    listed = {url: title for message in messages for title, url in _LISTED.findall(message.text())}
    return {url: listed.get(url) or unquote(url.rsplit("/", 1)[-1]) for url in urls}


def with_names(code: str, names: dict[str, str]) -> str:
    """The program with the files' names in place of their addresses."""
    for url in sorted(names, key=len, reverse=True):
        code = code.replace(url, names[url])
    return code


def _call_of(result: Message, messages: Sequence[Message]) -> ToolCall | None:
    calls = (call for message in reversed(messages) for call in message.tool_calls)
    return next((call for call in calls if call.id == result.tool_call_id), None)


def _table(text: str, call: ToolCall, messages: Sequence[Message]) -> _Table | None:
    url = str(orjson.loads(call.function.arguments).get("file_url", ""))
    name = names_of([url], messages)[url]
    found = _TABLE.search(text)
    if found is None or PurePosixPath(name).suffix.lower() not in LOADERS:
        return None
    rows = [_cells(line) for line in found[2].splitlines()]
    return _Table(name, ", ".join(_column(head, index, rows) for index, head in enumerate(_cells(f"|{found[1]}|"))))


def _column(head: str, index: int, rows: Sequence[Sequence[str]]) -> str:
    values = list(dict.fromkeys(row[index] for row in rows if index < len(row)))
    if all(_NUMBER.fullmatch(value) or not value for value in values):
        return f'"{head}"'
    shown = ", ".join(value[:VALUE_CHARS] for value in values[:SHOWN_VALUES])
    return f'"{head}" ({shown}{", …" if len(values) > SHOWN_VALUES else ""})'


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELLS.split(line.strip()[1:-1])]


def _question(messages: Sequence[Message]) -> str:
    asked = next((message for message in reversed(messages) if message.role is Role.USER), None)
    return _NOTE.sub("", asked.text()).strip()[:QUESTION_CHARS] if asked else ""
