"""Detect how a table's text separates, quotes and escapes its cells."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _csv import Reader

COMMON = (",", ";", "\t", "|")
_RARE = (":", " ", "^", "~")
NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe", ":": "colon", " ": "space"}
_QUOTES = ('"', "'", "`")
_SAMPLE = 65_536
_ROWS, _CELLS = 200, 2_000
_RARELY, _ENOUGH, _VALUES, _SOME = 0.9, 0.6, 0.95, 0.25
_ESCAPED = re.compile(r"\\[\"'`,;\t|:^~\\]")
_VALUE = re.compile(
    r"""\s*+(?:
    [-+]?+[$€£]?+[\d.,']*+(?<=\d)(?:e[-+]?\d+)?+\s*+[%€$£]?+        # a number
    |\d{1,4}[-./]\d{1,2}[-./]\d{1,4}(?:[T ]\d{1,2}:\d\d(?::\d\d)?+\S{0,8})?+  # a date, with a time
    |\d{1,2}:\d\d(?::\d\d)?+(?:\s?[ap]m)?+
    |(?:https?|ftp)://\S*+|[\w.+-]++@[\w-]++\.[\w.-]++
    |(?:n/a|null|none|nan|true|false|yes|no|-)
    )?\s*+""",
    re.IGNORECASE | re.VERBOSE,
)
_LEFT = re.compile(r"\\[\"'`,;|]|\\\s*+\Z")
_TEXT = re.compile(r"[^,;\t|]*+")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The marks of a table; no `quote` or `escape` where it is empty, doubled quotes count always."""

    delimiter: str
    quote: str = '"'
    escape: str = ""
    skips_spaces: bool = False

    def rows(self, lines: Iterable[str], *, strict: bool = False) -> Reader:
        """A reader of the lines, which end with a line feed.

        Raises:
            csv.Error: while reading, for a cell of more than 131,072 characters, or a misplaced quote if `strict`.
        """
        return csv.reader(
            map(self._prepared, lines) if self.escape else lines,
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            escapechar=self.escape or None,
            skipinitialspace=self.skips_spaces,
            strict=strict,
        )

    def _prepared(self, line: str) -> str:
        # The reader drops every backslash: those in front of ordinary letters are doubled.
        return re.sub(rf"\\(?![{re.escape(self.delimiter + self.quote)}\\\n])|\\\\", r"\\\\", line)


def lines_of(text: str) -> list[str]:
    """The lines with their line feeds; other characters that end lines elsewhere belong to cells."""
    lines = text.splitlines(keepends=True)  # three times as fast, and the same where there are no such characters
    is_same = len(lines) == text.count("\n") + (not text.endswith("\n") and bool(text))
    return lines if is_same else list(io.StringIO(text))


def detect(text: str, expected: str) -> Dialect:
    """The dialect under which the first rows agree in width and their cells look like values."""
    sample = text if len(text) <= _SAMPLE else text[:_SAMPLE].rpartition("\n")[0] or text[:_SAMPLE]
    lines = lines_of(sample)
    usual = Dialect(expected)
    scores = {dialect: _score(lines, dialect) for dialect in _candidates(sample, expected)}
    best = max(scores, key=lambda dialect: (scores[dialect], -_differences(dialect, usual)), default=usual)
    return best if scores.get(best) else usual


def _differences(one: Dialect, other: Dialect) -> int:
    return sum(getattr(one, name) != getattr(other, name) for name in Dialect.__slots__)


def _candidates(sample: str, expected: str) -> Iterator[Dialect]:
    escapes = ("", "\\") if _ESCAPED.search(sample) else ("",)
    for delimiter in dict.fromkeys((expected, *COMMON, *_RARE)):
        if delimiter not in sample:
            continue
        quotes = ['"', *(mark for mark in _QUOTES[1:] if _begins_cells(mark, delimiter, sample))]
        for escape in escapes:
            for quote in (*quotes, *([""] if escape else [])):
                yield Dialect(delimiter, quote, escape)
                if delimiter == " " or 2 * sample.count(f"{delimiter} ") > sample.count(delimiter):
                    yield Dialect(delimiter, quote, escape, skips_spaces=True)


def _begins_cells(mark: str, delimiter: str, sample: str) -> bool:
    return any(start + mark in sample for start in (delimiter, f"{delimiter} ", "\n")) or sample.startswith(mark)


def _score(lines: Sequence[str], dialect: Dialect) -> float:
    try:
        rows = [row for row in islice(dialect.rows(lines), _ROWS) if any(map(str.strip, row))]
    except csv.Error:
        return 0
    widths = Counter(map(len, rows))
    width, agreeing = max(widths.items(), key=lambda item: (item[1], item[0]), default=(1, 0))
    if width == 1:
        return 0
    cells = list(islice((cell for row in rows if len(row) == width for cell in row), _CELLS))
    score = agreeing / len(rows) * sum(map(_value, cells)) / len(cells)
    return score if dialect.delimiter in COMMON else _RARELY * score * _is_likely(lines, dialect, width, score)


def _is_likely(lines: Sequence[str], dialect: Dialect, width: int, score: float) -> bool:
    # "10:30" below "9:15", or "Hall 9" below "Hall 8", is rather one column of times or names.
    texts = [line for line in lines[:_ROWS] if line.strip()]
    texts = texts[1:] or texts
    alone = sum(map(_value, texts)) / len(texts)
    if score < _ENOUGH or alone >= _VALUES:
        return False
    if dialect.delimiter == " " and sum(
        (dialect.quote or _QUOTES[0]) in text or "  " in text for text in texts
    ) > _SOME * len(texts):
        return True
    if dialect.delimiter == " " or (dialect.delimiter == ":" and width == 2):
        return _RARELY * score > alone and (width > 2 or dialect.delimiter == ":")
    return True


def _value(cell: str) -> float:
    # A value is as it was meant; marks of another dialect in a cell show that this is not the right one.
    if _VALUE.fullmatch(cell):
        return 0.99 if cell.startswith(" ") else 1
    if _is_left_over(cell.strip()):
        return 0.1
    return 0.8 if _TEXT.fullmatch(cell) else 0.5


def _is_left_over(cell: str) -> bool:
    is_open = cell[-1:] in _QUOTES and cell.count(cell[-1]) % 2 == 1
    return is_open or cell.startswith(_QUOTES) or _LEFT.search(cell) is not None
