"""Reader of Excel workbooks."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile

from task.documents.markdown import Piece, blocks_of, heading, table
from task.documents.model import Block, Extraction, Unreadable
from task.documents.office import Harmful, Package, attribute, local, open_package, whole_number
from task.documents.tables import EMPTY
from task.documents.xlsx_cells import Cells, column_of, formats_of, is_1904, letters_of, strings_of

MOST_ROWS = 100_000
"""Rows read of one workbook; the rest is counted and named."""
_MOST_CELLS = 5_000_000
_MOST_FILLED = 1_000_000
_MOST_RANGES = 10
_CHUNK = 2**20
_ROW_STARTS = (b"<row ", b"<row>", b"<row/", b":row ", b":row/")
_RANGE = re.compile(r"([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})")


def read_xlsx(content: bytes, content_type: str = "") -> Extraction:
    """Every sheet under its name as a Markdown table: numbers, dates and percentages as Excel shows them.

    Merged cells repeat their text, formulas give the value saved with them.
    """
    package = open_package(content)
    workbook = package.xml(package.main)
    strings = strings_of(package, next(iter(package.parts("sharedStrings")), None))
    cells = Cells(strings, formats_of(package.first("styles"), from_1904=is_1904(workbook)))
    blocks: list[Block] = []
    notes: list[str] = []
    hidden: list[str] = []
    room, relations = MOST_ROWS, package.relations(package.main)
    sheets = [
        (element, relation.target)
        for element in workbook.iterfind("{*}sheets/{*}sheet")
        if (relation := relations.get(attribute(element, "id")))
        and relation.kind == "worksheet"
        and relation.target in package
    ]
    for number, (element, part) in enumerate(sheets, 1):
        name = attribute(element, "name")
        if is_hidden := attribute(element, "state") in ("hidden", "veryHidden"):
            hidden.append(name)
        rows = _Rows(package, part, cells, room)
        room -= len(rows.rows)
        blocks += blocks_of([heading(f"Sheet: {name}{' (hidden)' if is_hidden else ''}", 2), *rows.pieces()], number)
        if places := ", ".join(rows.places()):
            notes.append(f"sheet {name}: {places}")
        if rows.left:
            total = rows.left + len(rows.rows)
            notes.append(f"sheet {name}: {rows.left:,} of {total:,} rows left out after {len(rows.rows):,}")
    if cells.uncalculated:
        notes.append(f"formulas without a saved value, shown as they are: {cells.uncalculated}")
    if hidden:
        notes.append(f"hidden sheets: {', '.join(hidden)}")
    return Extraction(tuple(blocks), (*package.notes(), *notes))


class _Rows:
    """The rows of one sheet, at most `room` of them, merged cells filled; `left` counts those left out."""

    def __init__(self, package: Package, part: str, cells: Cells, room: int) -> None:
        self.rows: list[list[str]] = []
        self._total = 0
        self._numbers: list[int] = []
        self._merged: list[str] = []
        try:
            self._read(package, part, cells, room)
        except Harmful:
            raise
        except Unreadable:
            package.damaged.append(part)
        self._title_rows = self._count_titles()
        self._fill()
        self._table, self._columns = _without_empty_columns(self.rows[self._title_rows :])
        # All rows become as wide as the widest: a single wide row must not make the table too large.
        del self._table[_MOST_CELLS // max(map(len, self._table), default=1) :]
        del self.rows[self._title_rows + len(self._table) :]
        self.left = max(self._total, len(self._numbers)) - len(self.rows)

    def pieces(self) -> list[Piece]:
        if not self.rows:
            return [Piece("text", "(left out)" if self._total else "(empty)")]
        titles = [Piece("text", " ".join(filter(None, row))) for row in self.rows[: self._title_rows]]
        made = table(self._table)
        return [*titles, made] if made else titles

    def places(self) -> Iterator[str]:
        """Where the table is, if it does not begin at A1, and whether it has gaps."""
        numbers = self._numbers[self._title_rows : len(self.rows)]
        if len(numbers) < 2:
            return
        if numbers[0] > 1 or len(self._columns) <= self._columns[-1]:
            yield f"header in row {numbers[0]}, columns {_ranges(self._columns)}"
        if numbers[-1] - numbers[0] >= len(numbers):
            yield EMPTY

    def _read(self, package: Package, part: str, cells: Cells, room: int) -> None:
        places = 0
        for element in package.elements(part, ("row", "mergeCell")):
            if local(element) == "mergeCell":
                self._merged.append(attribute(element, "ref"))
                continue
            row = cells.row(element)
            if any(row):
                places += len(row)
                if len(self.rows) == room or places > _MOST_CELLS:
                    self._total = _count_rows(package, part)
                    return
                self.rows.append(row)
                self._numbers.append(whole_number(element.get("r", ""), len(self._numbers) + 1))

    def _count_titles(self) -> int:
        widths = [sum(map(bool, row)) for row in self.rows[:20]]
        return len(list(takewhile(lambda width: width == 1, widths))) if max(widths, default=0) > 1 else 0

    def _fill(self) -> None:
        width = max(map(len, self.rows), default=0)
        room = _MOST_FILLED
        for reference in self._merged:
            match = _RANGE.fullmatch(reference)
            if match is None:
                continue
            left, right = column_of(match[1]), min(column_of(match[3]), width - 1)
            top, bottom = bisect_left(self._numbers, int(match[2])), bisect_right(self._numbers, int(match[4]))
            room -= 1 + (bottom - top) * (right - left + 1)
            if room < 0:
                return
            if self._title_rows <= top < bottom and self._numbers[top] == int(match[2]):
                self._fill_range(range(top, bottom), left, right)

    def _fill_range(self, rows: range, left: int, right: int) -> None:
        first = self.rows[rows[0]]
        text = first[left] if left < len(first) else ""
        for index in rows:
            row = self.rows[index]
            row += [""] * (right + 1 - len(row))
            row[left : right + 1] = [text] * (right + 1 - left)


def _without_empty_columns(rows: list[list[str]]) -> tuple[list[list[str]], list[int]]:
    used = sorted({column for row in rows for column, cell in enumerate(row) if cell})
    if used == list(range(max(map(len, rows), default=0))):
        return rows, used
    return [[row[column] for column in used[: bisect_left(used, len(row))]] for row in rows], used


def _ranges(columns: Sequence[int]) -> str:
    groups = [
        [column for _, column in group] for _, group in groupby(enumerate(columns), lambda each: each[1] - each[0])
    ]
    texts = [letters_of(group[0]) + (f":{letters_of(group[-1])}" if len(group) > 1 else "") for group in groups]
    return ",".join(texts[:_MOST_RANGES]) + ("..." if len(texts) > _MOST_RANGES else "")


def _count_rows(package: Package, part: str) -> int:
    count, rest = 0, b""
    with package.stream(part) as stream:
        while chunk := stream.read(_CHUNK):
            whole, bracket, rest = (rest + chunk).rpartition(b">")
            count += sum(map((whole + bracket).count, _ROW_STARTS))
    return count
