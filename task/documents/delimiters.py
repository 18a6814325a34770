"""Which character separates the cells of a table in text."""

from __future__ import annotations

import csv
import re
from collections import Counter
from itertools import islice

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_ROWS = 200
_SAMPLE = 262_144
_NUMBER = re.compile(r"\s*[-+]?[\d.,]*\d\s*%?\s*")
_EXCEL = re.compile(r"sep=([,;|\t:^~])\n", re.IGNORECASE)


def declared(text: str) -> str | None:
    """The delimiter of Excel's own first line `sep=;`, if the text has one."""
    match = _EXCEL.match(text)
    return match.group(1) if match else None


def detected(text: str, expected: str) -> str:
    """The delimiter under which most rows have the same number of cells; `expected` where none tells."""
    scores = {candidate: _score(text[:_SAMPLE], candidate) for candidate in DELIMITERS}
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
