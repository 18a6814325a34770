"""Reader of Excel workbooks."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from task.documents.markdown import Piece, blocks_of, heading, table
from task.documents.model import Block, Extraction, Unreadable
from task.documents.office import Harmful, Package, attribute, local, open_package, whole_number
from task.documents.xlsx_cells import Cells, column_of, formats_of, is_1904, strings_of

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

MOST_ROWS = 100_000
"""Rows read of one workbook; the rest is counted and named."""
_MOST_CELLS = 5_000_000
_MOST_FILLED = 1_000_000
_CHUNK = 2**20
_ROW_STARTS = (b"<row ", b"<row>", b"<row/", b":row ", b":row/")
_RANGE = re.compile(r"([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})")


@dataclass(frozen=True, slots=True)
class _Sheet:
    name: str
    part: str
    is_hidden: bool


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
    room = MOST_ROWS
    sheets = list(_sheets(package, workbook))
    for number, sheet in enumerate(sheets, 1):
        read = _Rows(package, sheet.part, cells, room)
        room -= len(read.rows)
        blocks += blocks_of(read.pieces(sheet), number)
        notes += read.notes(sheet)
    if cells.uncalculated:
        notes.append(f"formulas without a saved value, shown as they are: {cells.uncalculated}")
    hidden = [sheet.name for sheet in sheets if sheet.is_hidden]
    if hidden:
        notes.append(f"hidden sheets: {', '.join(hidden)}")
    return Extraction(tuple(blocks), (*package.notes(), *notes))


def _sheets(package: Package, workbook: Element) -> Iterator[_Sheet]:
    relations = package.relations(package.main)
    for element in workbook.iterfind("{*}sheets/{*}sheet"):
        relation = relations.get(attribute(element, "id"))
        if relation is not None and relation.kind == "worksheet" and relation.target in package:
            is_hidden = attribute(element, "state") in ("hidden", "veryHidden")
            yield _Sheet(attribute(element, "name"), relation.target, is_hidden)


class _Rows:
    """The rows of one sheet, at most `room` of them, merged cells filled."""

    def __init__(self, package: Package, part: str, cells: Cells, room: int) -> None:
        self.rows: list[list[str]] = []
        self.total = 0
        self._numbers: list[int] = []
        self._merged: list[str] = []
        try:
            self._read(package, part, cells, room)
        except Harmful:
            raise
        except Unreadable:
            package.damaged.append(part)
        self.titles = self._titles()
        self._fill()
        self._table = _without_empty_columns(self.rows[self.titles :])
        # Rows become as wide as the widest: one wide row must not make all of them so.
        del self._table[_MOST_CELLS // max(map(len, self._table), default=1) :]
        del self.rows[self.titles + len(self._table) :]

    def pieces(self, sheet: _Sheet) -> list[Piece]:
        named = heading(f"Sheet: {sheet.name}{' (hidden)' if sheet.is_hidden else ''}", 2)
        titles = [Piece("text", " ".join(filter(None, row))) for row in self.rows[: self.titles]]
        if not self.rows:
            return [named, Piece("text", "(left out)" if self.total else "(empty)")]
        made = table(self._table)
        return [named, *titles, *([made] if made else [])]

    def notes(self, sheet: _Sheet) -> list[str]:
        left = max(self.total, len(self._numbers)) - len(self.rows)
        return [f"sheet {sheet.name}: {left:,} of {left + len(self.rows):,} rows left out after {len(self.rows):,}"] * (
            left > 0
        )

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
                    self.total = _count_rows(package, part)
                    return
                self.rows.append(row)
                self._numbers.append(whole_number(element.get("r", ""), len(self._numbers) + 1))

    def _titles(self) -> int:
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
            if self.titles <= top < bottom and self._numbers[top] == int(match[2]):
                self._fill_range(range(top, bottom), left, right)

    def _fill_range(self, rows: range, left: int, right: int) -> None:
        first = self.rows[rows[0]]
        text = first[left] if left < len(first) else ""
        for index in rows:
            row = self.rows[index]
            row += [""] * (right + 1 - len(row))
            row[left : right + 1] = [text] * (right + 1 - left)


def _without_empty_columns(rows: list[list[str]]) -> list[list[str]]:
    used = sorted({column for row in rows for column, cell in enumerate(row) if cell})
    if used == list(range(max(map(len, rows), default=0))):
        return rows
    return [[row[column] for column in used[: bisect_left(used, len(row))]] for row in rows]


def _count_rows(package: Package, part: str) -> int:
    count, rest = 0, b""
    with package.stream(part) as stream:
        while chunk := stream.read(_CHUNK):
            whole, bracket, rest = (rest + chunk).rpartition(b">")
            count += sum(map((whole + bracket).count, _ROW_STARTS))
    return count
