"""Where text, lines and tables are on a page of a PDF, and the order in which text is read."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate, chain, islice, pairwise
from statistics import median
from typing import Any, NamedTuple

import pypdfium2.raw as c
from pypdfium2 import PdfMatrix

_FEWEST_LINES = 4
_FEWEST_LETTERS = 20  # in most lines of a column of prose; shorter ones are a table without lines, read row by row
_GUTTER = 9.0
_WINDOW = 30
MOST_CROSSINGS = 5_000  # pdfplumber's search takes a second for that many
_TOLERANCE = 3.0
MOST_EDGES = 4_000  # more is a drawing, not a table
_THIN = 3.0
_SHORTEST = 4.0
_DEEPEST = 4
_Place = tuple[float, float]


def _by_address(function: Any, *types: Any) -> Any:
    # With numbers in place of objects a call takes half as long; the first type is that of the result.
    return ctypes.cast(function, ctypes.CFUNCTYPE(*types))


_AT = ctypes.c_void_p
CHAR_BOX = _by_address(c.FPDFText_GetCharBox, ctypes.c_int, _AT, ctypes.c_int, _AT, _AT, _AT, _AT)
_RECT = _by_address(c.FPDFText_GetRect, ctypes.c_int, _AT, ctypes.c_int, _AT, _AT, _AT, _AT)
_OBJECT = _by_address(c.FPDFPage_GetObject, _AT, _AT, ctypes.c_int)
_KIND = _by_address(c.FPDFPageObj_GetType, ctypes.c_int, _AT)
_Corners = tuple[float, float, float, float]


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
        return reduce(Box.around, self.cells)


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

    def around(self, x: float, y: float) -> Box | None:
        """The first cell in which the place is."""
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


class PageFrame:
    """Converts points of a pypdfium2 page's own space to the page as it is seen."""

    def __init__(self, page: Any) -> None:
        left, bottom, right, top = page.get_bbox()
        turned: dict[int, Callable[[float, float], tuple[float, float]]] = {
            0: lambda x, y: (x - left, top - y),
            90: lambda x, y: (y - bottom, x - left),
            180: lambda x, y: (right - x, y - bottom),
            270: lambda x, y: (top - y, right - x),
        }
        rotation = page.get_rotation()
        self._point, self._corner = turned[rotation], None if rotation else (left, top)

    def box(self, left: float, bottom: float, right: float, top: float) -> Box:
        """The box between two corners of the page's own space."""
        if self._corner is not None and left <= right and bottom <= top:  # the usual case, called for each letter
            x, y = self._corner
            return Box(left - x, y - top, right - x, y - bottom)
        (ax, ay), (bx, by) = self._point(left, bottom), self._point(right, top)
        return Box(min(ax, bx), min(ay, by), max(ax, bx), max(ay, by))

    def middle(self, left: float, bottom: float, right: float, top: float) -> _Place:
        """The middle of that box."""
        if self._corner is not None and left <= right and bottom <= top:
            x, y = self._corner
            return (left - x + (right - x)) / 2, (y - top + (y - bottom)) / 2
        box = self.box(left, bottom, right, top)
        return (box.x0 + box.x1) / 2, (box.top + box.bottom) / 2


def _address(item: Any) -> int:
    return ctypes.cast(item.raw, _AT).value or 0


def corners_of(textpage: Any) -> tuple[int, Any, list[int]]:
    """The page's address, an array of four numbers, and their addresses, for calls that are made for each letter."""
    corners = (ctypes.c_double * 4)()
    return _address(textpage), corners, [ctypes.addressof(corners) + 8 * place for place in range(4)]


def may_have_columns(textpage: Any, *, is_lying: bool) -> bool:
    """Whether the page often draws text side by side, as columns or a table do; a quick check."""
    raw, corners, places = corners_of(textpage)
    side_by_side, last_start, last_end, last_low, last_high = 0, 0.0, 0.0, 0.0, 0.0
    count = c.FPDFText_CountRects(textpage.raw, 0, -1)
    # On a page with many rectangles the beginning, the middle and the end are enough.
    starts = (0, (count - _WINDOW) // 2, count - _WINDOW)
    windows = [range(start, start + _WINDOW) for start in starts] if count > 3 * _WINDOW else [range(count)]
    for index in chain.from_iterable(windows):
        _RECT(raw, index, *places)
        left, top, right, bottom = corners[:]
        # For speed this uses the page's own coordinates, with the axes exchanged where it is shown lying.
        start, end, low, high = (bottom, top, left, right) if is_lying else (left, right, bottom, top)
        if last_low < (low + high) / 2 < last_high:
            side_by_side += max(start - last_end, last_start - end) > _GUTTER
        last_start, last_end, last_low, last_high = start, end, low, high
    return side_by_side >= (_FEWEST_LINES if count <= 3 * _WINDOW else _FEWEST_LINES // 2)


def in_reading_order(runs: Sequence[TextRun]) -> list[TextRun]:
    """The runs, columns of prose one after the other between the runs that span them; otherwise as they were."""
    gutter = _gutter(runs)
    if gutter is None:
        return list(runs)
    ordered: list[TextRun] = []
    left: list[TextRun] = []
    right: list[TextRun] = []
    tops: dict[int, float] = {}
    for run in runs:
        tops[run.line] = min(run.box.top, tops.get(run.line, run.box.top))
    for run in sorted(runs, key=lambda run: (tops[run.line], run.line, run.box.x0)):
        if run.box.x1 <= gutter:
            left.append(run)
        elif run.box.x0 >= gutter:
            right.append(run)
        else:
            ordered += [*in_reading_order(left), *in_reading_order(right), run]
            left, right = [], []
    return [*ordered, *in_reading_order(left), *in_reading_order(right)]


def _gutter(runs: Sequence[TextRun]) -> float | None:
    pairs = [(one, two) for one, two in pairwise(runs) if one.line == two.line and two.box.x0 - one.box.x1 > _GUTTER]
    if len(pairs) < _FEWEST_LINES:
        return None
    # The middle of the place that most gaps span.
    edges = sorted([*((one.box.x1, 1) for one, _ in pairs), *((two.box.x0, -1) for _, two in pairs)])
    depths = list(accumulate(step for _, step in edges))
    deepest = depths.index(max(depths))
    place = (edges[deepest][0] + edges[deepest + 1][0]) / 2
    beside = [pair for pair in pairs if pair[0].box.x1 < place < pair[1].box.x0]
    # Sentences wrap in columns: both sides of the gutter are lines of prose.
    is_prose = all(median(len(pair[side].text) for pair in beside) >= _FEWEST_LETTERS for side in (0, 1))
    crossing = sum(run.box.x0 < place < run.box.x1 for run in runs)
    return place if len(beside) >= max(_FEWEST_LINES, crossing) and is_prose else None


class Marks:
    """What is drawn on a pypdfium2 page beside its text: `edges`, `pictures`, `shapes`.

    Edges are straight lines as thin boxes, none where there are too many for a table; pictures are the share of the
    page that they cover; shapes count lines and areas.
    """

    def __init__(self, page: Any, frame: PageFrame) -> None:
        self._frame, self.edges, self.pictures, self.shapes = frame, list[Box](), 0.0, 0
        self._corners = tuple(ctypes.c_float() for _ in range(4))
        raw, item_at, kind_of, text = _address(page), _OBJECT, _KIND, c.FPDF_PAGEOBJ_TEXT
        for index in range(c.FPDFPage_CountObjects(page.raw)):
            if (kind := kind_of(item_at(raw, index))) != text:
                self._object(c.FPDFPage_GetObject(page.raw, index), kind, PdfMatrix(), 0)
        left, bottom, right, top = page.get_bbox()
        self.pictures = min(1.0, self.pictures / max(1.0, (right - left) * (top - bottom)))
        if len(self.edges) > MOST_EDGES:
            self.edges = []

    def _object(self, item: Any, kind: int, matrix: PdfMatrix, depth: int) -> None:
        if len(self.edges) > MOST_EDGES:
            return
        if kind == c.FPDF_PAGEOBJ_PATH:
            self.shapes += 1
            box = self._bounds(item, matrix)
            if min(box.width, box.height) > _THIN:
                self.edges += self._segments(item, self._matrix(item).multiply(matrix))
            elif max(box.width, box.height) >= _SHORTEST:
                self.edges.append(box)
        elif kind == c.FPDF_PAGEOBJ_IMAGE:
            box = self._bounds(item, matrix)
            self.pictures += box.width * box.height
        elif kind == c.FPDF_PAGEOBJ_FORM and depth < _DEEPEST:
            inner = self._matrix(item).multiply(matrix)
            for index in range(c.FPDFFormObj_CountObjects(item)):
                child = c.FPDFFormObj_GetObject(item, index)
                self._object(child, c.FPDFPageObj_GetType(child), inner, depth + 1)

    def _segments(self, item: Any, matrix: PdfMatrix) -> Iterator[Box]:
        x, y = ctypes.c_float(), ctypes.c_float()
        start = last = (0.0, 0.0)
        for index in range(min(c.FPDFPath_CountSegments(item), MOST_EDGES)):
            segment = c.FPDFPath_GetPathSegment(item, index)
            c.FPDFPathSegment_GetPoint(segment, x, y)
            here = matrix.on_point(x.value, y.value)
            kind = c.FPDFPathSegment_GetType(segment)
            if kind == c.FPDF_SEGMENT_MOVETO:
                start = here
            elif kind == c.FPDF_SEGMENT_LINETO:
                yield from self._line(last, here)
            last = here
            if c.FPDFPathSegment_GetClose(segment):
                yield from self._line(last, start)
                last = start

    def _line(self, start: tuple[float, float], end: tuple[float, float]) -> Iterator[Box]:
        box = self._frame.box(*start, *end)
        if min(box.width, box.height) <= 1.0 and max(box.width, box.height) >= _SHORTEST:
            yield box

    def _bounds(self, item: Any, matrix: PdfMatrix) -> Box:
        left, bottom, right, top = self._corners
        c.FPDFPageObj_GetBounds(item, left, bottom, right, top)
        return self._frame.box(*matrix.on_point(left.value, bottom.value), *matrix.on_point(right.value, top.value))

    def _matrix(self, item: Any) -> PdfMatrix:
        found = c.FS_MATRIX()
        c.FPDFPageObj_GetMatrix(item, found)
        return PdfMatrix.from_raw(found)


@lru_cache(maxsize=2)  # on its further pages a long table usually has the same lines
def grids_of(edges: tuple[Box, ...]) -> list[Grid] | None:
    """The tables of at least two rows and two columns that the lines make, from the top of the page.

    None where more lines cross than can be made into cells in a reasonable time.
    """
    across = [box for box in edges if box.width >= box.height]
    down = [box for box in edges if box.width < box.height]
    if len(across) < 2 or len(down) < 2:
        return []
    from pdfplumber import table as plumber

    merged = plumber.merge_edges(
        [*(_edge(box, "h") for box in across), *(_edge(box, "v") for box in down)], *(_TOLERANCE,) * 4
    )
    if len({edge["x0"] for edge in merged if edge["orientation"] == "v"}) < 3:
        return []
    crossings = plumber.edges_to_intersections(merged, _TOLERANCE, _TOLERANCE)
    if len(crossings) > MOST_CROSSINGS:
        return None
    grids: list[Grid] = []
    for cells in plumber.cells_to_tables(_cells(crossings)):
        found = {(cell[1], cell[0]): Box(*cell) for cell in cells}
        tops, lefts = ({place[side] for place in found} for side in (0, 1))
        if len(tops) > 1 and len(lefts) > 1:
            rows = (tuple(found.get((top, left)) for left in sorted(lefts)) for top in sorted(tops))
            grids.append(Grid(tuple(rows)))
    return grids


def _cells(crossings: Mapping[_Place, Mapping[str, Sequence[Any]]]) -> list[_Corners]:
    # The smallest cell below and to the right of each crossing: pdfplumber's `intersections_to_cells`, which looks
    # through all crossings for each of them.
    # The lines by their identity: merged, no two of them are the same.
    down = {point: frozenset(map(id, lines["v"])) for point, lines in crossings.items()}
    across = {point: frozenset(map(id, lines["h"])) for point, lines in crossings.items()}
    columns, rows = defaultdict[float, list[float]](list), defaultdict[float, list[float]](list)
    cells: list[_Corners] = []
    for left, top in sorted(crossings, reverse=True):
        corner = (left, top)
        closed = (
            (left, top, x, y)
            for y in reversed(columns[left])
            if not down[corner].isdisjoint(down[left, y])
            for x in reversed(rows[top])
            if not across[corner].isdisjoint(across[x, top])
            if (x, y) in crossings
            if not (down[x, y].isdisjoint(down[x, top]) or across[x, y].isdisjoint(across[left, y]))
        )
        cells += islice(closed, 1)
        columns[left].append(top)
        rows[top].append(left)
    return cells[::-1]


def _edge(box: Box, orientation: str) -> dict[str, Any]:
    x, y = (box.x0 + box.x1) / 2, (box.top + box.bottom) / 2
    line = Box(box.x0, y, box.x1, y) if orientation == "h" else Box(x, box.top, x, box.bottom)
    return {"orientation": orientation, "width": line.width, "height": line.height, **line._asdict()}
