"""Tables of HTML as rows of cells, spans filled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bs4 import Tag

_WIDEST_SPAN = 100
_TALLEST_SPAN = 10_000


class Grid:
    """The cells of one table while it is read; a spanning cell's text stands in every place it covers."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []
        self._hanging: dict[int, tuple[int, str]] = {}  # column -> rows still covered, text
        self._cell: list[str] = []
        self._span: tuple[int, int] | None = None

    @property
    def in_cell(self) -> bool:
        return self._span is not None

    def open(self, tag: Tag) -> None:
        """A row or a cell begins, whether or not the one before was ended."""
        self._end_cell()
        if tag.name == "tr":
            self._end_row()
            self._rows.append([])
        else:
            self._span = (_number(tag, "colspan", _WIDEST_SPAN), _number(tag, "rowspan", _TALLEST_SPAN))

    def write(self, text: str) -> None:
        self._cell.append(text)

    def rows(self) -> list[list[str]]:
        self._end_cell()
        self._end_row()
        return self._rows

    def _end_cell(self) -> None:
        text = "\n".join(self._cell)
        self._cell.clear()
        if self._span is None:
            return
        (width, height), self._span = self._span, None
        self._fill()
        row = self._row()
        for column in range(len(row), len(row) + width):
            if height > 1:
                self._hanging[column] = (height - 1, text)
        row += [text] * width

    def _row(self) -> list[str]:
        if not self._rows:
            self._rows.append([])
        return self._rows[-1]

    def _fill(self) -> None:
        row = self._row()
        while (covered := self._hanging.get(len(row))) is not None:
            left, text = covered
            if left > 1:
                self._hanging[len(row)] = (left - 1, text)
            else:
                del self._hanging[len(row)]
            row.append(text)

    def _end_row(self) -> None:
        if self._rows:
            self._fill()


def _number(tag: Tag, name: str, largest: int) -> int:
    value = str(tag.get(name) or "")
    return min(max(int(value), 1), largest) if value.isascii() and value.isdigit() and len(value) < 9 else 1
