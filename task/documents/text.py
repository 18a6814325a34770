"""Readers of text files: plain text, JSON, CSV and TSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Literal

from task.documents.encoding import decode
from task.documents.markdown import as_markdown
from task.documents.model import Block, Extraction

_STRING = r'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+(?:"|\\?\Z)'
# One line of the indented form: an optional key, a bracket or a scalar, an optional comma.
_LINE = re.compile(rf"(?:({_STRING})\s*:\s*)?({_STRING}|[{{}}\[\]]|[^\s{{}}\[\],:\"]+)\s*(,?)")
_NAMED_LINES = 5
_QUOTING: tuple[tuple[Literal[0, 3], tuple[str, ...]], ...] = (
    (csv.QUOTE_MINIMAL, ()),
    (csv.QUOTE_NONE, ("unbalanced quotes kept as they are",)),
)
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_ROWS = 200
_SAMPLE = 262_144
_NUMBER = re.compile(r"\s*+[-+]?+[\d.,]*\d\s*+%?+\s*+")
_EXCEL = re.compile(r"sep=([,;|\t:^~])\n", re.IGNORECASE)  # Excel's own first line names the delimiter


def read_text(content: bytes, content_type: str = "") -> Extraction:
    decoded = decode(content)
    return Extraction((Block(decoded.text),), decoded.notes)


def read_json(content: bytes, content_type: str = "") -> Extraction:
    """JSON indented by two spaces, its numbers and keys exactly as they were; text with a note where it is invalid."""
    decoded = decode(content)
    if not decoded.text.strip():
        return Extraction(notes=decoded.notes)
    try:
        json.loads(decoded.text)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        return Extraction((Block(decoded.text),), (*decoded.notes, f"not valid JSON ({reason}), given as it is"))
    return Extraction((Block(_indented(decoded.text)),), decoded.notes)


def _indented(text: str) -> str:
    pieces: list[str] = []
    room = 4 * len(text) + 10_000
    for piece in _lines(text):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:  # the indentation of deep nesting would fill the memory
            return text
    return "".join(pieces).lstrip()


def _lines(text: str) -> Iterator[str]:
    indent, is_opening = "\n", False
    for match in _LINE.finditer(text):
        key, value, comma = match.groups()
        if value in ("]", "}"):
            indent = indent[:-2]
            yield f"{value}{comma}" if is_opening else f"{indent}{value}{comma}"
            is_opening = False
            continue
        yield f"{indent}{_readable(key)}: {_readable(value)}{comma}" if key else f"{indent}{_readable(value)}{comma}"
        is_opening = value in ("[", "{")
        if is_opening:
            indent += "  "


def _readable(part: str) -> str:
    r"""The part with its \uXXXX letters as letters, unless half of a surrogate pair would be left alone."""
    if "\\u" not in part:
        return part
    readable = json.dumps(json.loads(part), ensure_ascii=False)
    return part if any("\ud800" <= letter <= "\udfff" for letter in readable) else readable


@dataclass(frozen=True, slots=True)
class _Shape:
    """Cells of the widest row and of most rows, rows of one cell above the table, and the lines of ragged rows.

    Rows without text do not count, except in `parsed`: the widest row that a parser will find.
    """

    parsed: int
    width: int
    usual: int
    titles: int
    ragged: tuple[int, ...]


def read_table(content: bytes, content_type: str = "", *, expected: str) -> Extraction:
    """A Markdown table whose first row is the header; text with a note where it cannot be read as a table."""
    decoded = decode(content)
    if not decoded.text.strip():
        return Extraction(notes=decoded.notes)
    declared = _EXCEL.match(decoded.text)
    text = decoded.text[declared.end() :] if declared else decoded.text
    delimiter = declared[1] if declared else _detected(text, expected)
    if not text.translate({ord(delimiter): None, ord('"'): None}).strip():
        return Extraction(notes=decoded.notes)
    notes = list(decoded.notes)
    if delimiter != expected:
        notes.append(f"cells separated by {_DELIMITERS.get(delimiter, delimiter)}")
    for quoting, remark in _QUOTING:
        try:
            shape = _shape_of(text, delimiter, quoting)
            rows = _rows(text, delimiter, quoting, shape)
        except (csv.Error, ValueError):
            continue
        titles = Block("\n".join(row[0] for row in rows[: shape.titles]))
        table = rows[shape.titles :]
        blocks = (titles, as_markdown(table)) if shape.titles else (as_markdown(table),)
        return Extraction(blocks, (*notes, *remark, *_figures(len(table) - 1, shape)))
    return Extraction((Block(decoded.text),), (*notes, "not readable as a table, given as it is"))


read_csv = partial(read_table, expected=",")


read_tsv = partial(read_table, expected="\t")


def _shape_of(text: str, delimiter: str, quoting: Literal[0, 3]) -> _Shape:
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, quoting=quoting)
    every = [(len(row), reader.line_num, _has_text(row)) for row in reader]
    lines = [(width, line) for width, line, has_text in every if has_text]
    usual = Counter(width for width, _ in lines).most_common(1)[0][0]
    titles = sum(1 for _ in takewhile(lambda line: line[0] == 1 < usual, lines))
    return _Shape(
        parsed=max(width for width, *_ in every),
        width=max(width for width, _ in lines),
        usual=usual,
        titles=titles,
        ragged=tuple(line for width, line in lines[titles:] if width != usual),
    )


def _rows(text: str, delimiter: str, quoting: Literal[0, 3], shape: _Shape) -> list[list[str]]:
    import pandas as pd

    frame = pd.read_csv(
        io.StringIO(text), sep=delimiter, quoting=quoting, header=None, names=range(shape.parsed), index_col=False,
        dtype=str, keep_default_na=False, na_filter=False, engine="c",
        skip_blank_lines=False,
    )  # fmt: skip
    return [row[: shape.width] for row in frame.to_numpy().tolist() if _has_text(row)]


def _has_text(row: Iterable[str]) -> bool:
    return any(map(str.strip, row))


def _figures(rows: int, shape: _Shape) -> list[str]:
    figures = [f"{_counted(rows, 'row')}, {_counted(shape.width, 'column')}"]
    if shape.ragged:
        lines = ", ".join(map(str, shape.ragged[:_NAMED_LINES])) + ", ..." * (len(shape.ragged) > _NAMED_LINES)
        odd = _counted(len(shape.ragged), "row")
        figures.append(f"{odd} without the usual {_counted(shape.usual, 'cell')} kept (line {lines})")
    return figures


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _detected(text: str, expected: str) -> str:
    scores = {candidate: _score(text[:_SAMPLE], candidate) for candidate in _DELIMITERS}
    best = max(scores, key=lambda candidate: (scores[candidate], candidate == expected))
    return best if scores[best] > (0, 0, 0, 0) else expected


def _score(text: str, delimiter: str) -> tuple[float, float, float, int]:
    try:
        rows = [row for row in islice(csv.reader(text.split("\n"), delimiter=delimiter), _ROWS) if row]
    except csv.Error:
        return (0, 0, 0, 0)
    widths = Counter(len(row) for row in rows)
    width, agreeing = max(widths.items(), key=lambda item: (item[1], item[0]), default=(1, 0))
    if width == 1:
        return (0, 0, 0, 0)
    cells = [cell for row in rows if len(row) == width for cell in row]
    # "1,5;2,5" has the same number of cells under both; only the semicolon leaves nothing but numbers.
    numbers = sum(_NUMBER.fullmatch(cell) is not None for cell in cells) / len(cells)
    return (agreeing / len(rows), float(len(rows[0]) == width), numbers, width)
