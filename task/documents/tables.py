"""Reader of CSV and TSV: any delimiter, any line ends, every row kept."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Literal

from task.documents.encoding import decode
from task.documents.markdown import as_markdown
from task.documents.model import Block, Extraction

_NAMED_LINES = 5
_QUOTING: tuple[tuple[Literal[0, 3], tuple[str, ...]], ...] = (
    (csv.QUOTE_MINIMAL, ()),
    (csv.QUOTE_NONE, ("unbalanced quotes kept as they are",)),
)
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_ROWS = 200
_SAMPLE = 262_144
_NUMBER = re.compile(r"\s*[-+]?[\d.,]*\d\s*%?\s*")
_EXCEL = re.compile(r"sep=([,;|\t:^~])\n", re.IGNORECASE)  # Excel's own first line names the delimiter


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
