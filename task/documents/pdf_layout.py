"""Where text and tables are on a page of a PDF, and the order in which they are read."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from statistics import median
from typing import Any, NamedTuple

import pypdfium2.raw as c

_FEWEST_LINES = 4
_FEWEST_LETTERS = 20  # in most lines of a column of prose; shorter ones are a table without lines, read row by row
_GUTTER = 9.0
_WINDOW = 30
_Point = Callable[[float, float], tuple[float, float]]


class Box(NamedTuple):
    """A rectangle in points, y counted downwards."""

    x0: float
    top: float
    x1: float
    bottom: float

    @property
    def width(self) -> float:
        return self.x1 - self.x0

    @property
    def height(self) -> float:
        return self.bottom - self.top

    def holds(self, x: float, y: float) -> bool:
        x0, top, x1, bottom = self
        return x0 <= x < x1 and top <= y < bottom

    def around(self, other: Box) -> Box:
        """The smallest box that holds both."""
        return Box(
            min(self.x0, other.x0), min(self.top, other.top), max(self.x1, other.x1), max(self.bottom, other.bottom)
        )


@dataclass(frozen=True, slots=True)
class Grid:
    """A table's cells, row by row; None where a cell to the left or above extends over the place."""

    rows: tuple[tuple[Box | None, ...], ...]

    @property
    def cells(self) -> list[Box]:
        return [cell for row in self.rows for cell in row if cell is not None]

    @property
    def box(self) -> Box:
        lefts, tops, rights, bottoms = zip(*self.cells, strict=True)
        return Box(min(lefts), min(tops), max(rights), max(bottoms))


class Cells:
    """The cells of a page's tables, found by the place of a letter."""

    def __init__(self, cells: Iterable[Box]) -> None:
        cells = list(cells)
        # The heights at which cells begin or end, and the cells between each of them and the next.
        self._heights = sorted({height for cell in cells for height in (cell.top, cell.bottom)})
        self._bands: list[list[Box]] = [[] for _ in self._heights]
        place = {height: number for number, height in enumerate(self._heights)}
        for cell in cells:
            for band in self._bands[place[cell.top] : place[cell.bottom]]:
                band.append(cell)

    def __bool__(self) -> bool:
        return bool(self._heights)

    def around(self, letter: Box, last: Box | None) -> Box | None:
        """The cell in which the middle of the letter is: that of the `last` letter, else the first that holds it."""
        if not self._heights:
            return None
        x0, top, x1, bottom = letter
        x, y = (x0 + x1) / 2, (top + bottom) / 2
        if last is not None and last.holds(x, y):
            return last
        band = bisect_right(self._heights, y) - 1
        return next((cell for cell in self._bands[band] if cell.holds(x, y)), None) if band >= 0 else None


@dataclass(slots=True)
class TextRun:
    """Adjacent letters: their box, the number of their line in pdfium's count, and their table cell.

    A table takes its place among the runs of a page as one without text.
    """

    text: str
    box: Box
    line: int
    cell: Box | None = None
    grid: Grid | None = None


class Frame(NamedTuple):
    """Converts points of the page's own space to the page as it is seen; only an upright page has a `corner`."""

    point: _Point
    corner: tuple[float, float] | None

    def box(self, left: float, bottom: float, right: float, top: float) -> Box:
        """The box between two corners of the page's own space."""
        if self.corner is not None and left <= right and bottom <= top:  # the usual case, called for each letter
            x, y = self.corner
            return Box(left - x, y - top, right - x, y - bottom)
        (ax, ay), (bx, by) = self.point(left, bottom), self.point(right, top)
        return Box(min(ax, bx), min(ay, by), max(ax, bx), max(ay, by))


def frame_of(page: Any) -> Frame:
    """The frame of a pypdfium2 page."""
    left, bottom, right, top = page.get_bbox()
    turned: dict[int, _Point] = {
        0: lambda x, y: (x - left, top - y),
        90: lambda x, y: (y - bottom, x - left),
        180: lambda x, y: (right - x, y - bottom),
        270: lambda x, y: (top - y, right - x),
    }
    rotation = page.get_rotation()
    return Frame(turned[rotation], None if rotation else (left, top))


def may_have_columns(textpage: Any, *, is_lying: bool) -> bool:
    """Whether the page often draws text side by side, as columns or a table do; a quick check."""
    raw, read = textpage.raw, c.FPDFText_GetRect
    corners = left, top, right, bottom = tuple(ctypes.c_double() for _ in range(4))
    # For speed this uses the page's own coordinates, with the axes exchanged where it is shown lying.
    start, end, low, high = (bottom, top, left, right) if is_lying else (left, right, bottom, top)
    side_by_side, last_start, last_end, last_low, last_high = 0, 0.0, 0.0, 0.0, 0.0
    count = c.FPDFText_CountRects(raw, 0, -1)
    for index in _sample(count):
        read(raw, index, *corners)
        middle = (low.value + high.value) / 2
        if last_low < middle < last_high:
            gap = max(start.value - last_end, last_start - end.value)
            side_by_side += gap > _GUTTER
        last_start, last_end, last_low, last_high = start.value, end.value, low.value, high.value
    return side_by_side >= (_FEWEST_LINES if count <= 3 * _WINDOW else _FEWEST_LINES // 2)


def _sample(count: int) -> Iterable[int]:
    # On a page with many rectangles the beginning, the middle and the end are enough.
    if count <= 3 * _WINDOW:
        return range(count)
    starts = (0, (count - _WINDOW) // 2, count - _WINDOW)
    return chain.from_iterable(range(start, start + _WINDOW) for start in starts)


def in_reading_order(runs: Sequence[TextRun]) -> list[TextRun]:
    """The runs, columns of prose one after the other between the runs that span them; otherwise as they were."""
    gutter = _gutter(runs)
    if gutter is None:
        return list(runs)
    ordered: list[TextRun] = []
    left: list[TextRun] = []
    right: list[TextRun] = []
    for run in _from_the_top(runs):
        if run.box.x1 <= gutter:
            left.append(run)
        elif run.box.x0 >= gutter:
            right.append(run)
        else:
            ordered += [*in_reading_order(left), *in_reading_order(right), run]
            left, right = [], []
    return [*ordered, *in_reading_order(left), *in_reading_order(right)]


def _from_the_top(runs: Sequence[TextRun]) -> list[TextRun]:
    tops: dict[int, float] = {}
    for run in runs:
        tops[run.line] = min(run.box.top, tops.get(run.line, run.box.top))
    return sorted(runs, key=lambda run: (tops[run.line], run.line, run.box.x0))


def _gutter(runs: Sequence[TextRun]) -> float | None:
    pairs = [(one, two) for one, two in pairwise(runs) if one.line == two.line and two.box.x0 - one.box.x1 > _GUTTER]
    if len(pairs) < _FEWEST_LINES:
        return None
    place = _most_spanned([(one.box.x1, two.box.x0) for one, two in pairs])
    beside = [pair for pair in pairs if pair[0].box.x1 < place < pair[1].box.x0]
    # Sentences wrap in columns: both sides of the gutter are lines of prose.
    is_prose = all(median(len(pair[side].text) for pair in beside) >= _FEWEST_LETTERS for side in (0, 1))
    crossing = sum(run.box.x0 < place < run.box.x1 for run in runs)
    return place if len(beside) >= max(_FEWEST_LINES, crossing) and is_prose else None


def _most_spanned(gaps: Sequence[tuple[float, float]]) -> float:
    edges = sorted([*((start, 1) for start, _ in gaps), *((end, -1) for _, end in gaps)])
    depths = list(accumulate(step for _, step in edges))
    deepest = depths.index(max(depths))
    return (edges[deepest][0] + edges[deepest + 1][0]) / 2
