"""The lines drawn on a page of a PDF, and the tables that pdfplumber finds in them."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import pypdfium2.raw as c

from task.documents.pdf_layout import Box, Frame, Grid

MOST_CROSSINGS = 5_000  # pdfplumber's search takes a second for that many
_TOLERANCE = 3.0
MOST_EDGES = 4_000  # more is a drawing, not a table
_THIN = 3.0
_SHORTEST = 4.0
_DEEPEST = 4
_CORNERS = itemgetter("x0", "top", "x1", "bottom")
_Point = tuple[float, float]
_Corners = tuple[float, float, float, float]
_Matrix = tuple[float, float, float, float, float, float]
_IDENTITY: _Matrix = (1, 0, 0, 1, 0, 0)


class Marks(NamedTuple):
    """What is drawn on a page beside its text: straight edges, the share that is pictures, how many lines and areas."""

    edges: list[Box]
    pictures: float
    shapes: int


def marks_of(page: Any, frame: Frame) -> Marks:
    """The page's straight lines, thin boxes each, and its pictures; no lines where there are too many for a table."""
    left, bottom, right, top = page.get_bbox()
    scan = _Scan(frame)
    scan.page(page)
    area = max(1.0, (right - left) * (top - bottom))
    edges = [] if len(scan.edges) > MOST_EDGES else scan.edges
    return Marks(edges, min(1.0, scan.pictures / area), scan.shapes)


class _Scan:
    def __init__(self, frame: Frame) -> None:
        self.frame, self.edges, self.pictures, self.shapes = frame, list[Box](), 0.0, 0
        self._corners = tuple(ctypes.c_float() for _ in range(4))

    def page(self, page: Any) -> None:
        raw, item_at, kind_of, text = page.raw, c.FPDFPage_GetObject, c.FPDFPageObj_GetType, c.FPDF_PAGEOBJ_TEXT
        for index in range(c.FPDFPage_CountObjects(raw)):
            item = item_at(raw, index)
            if (kind := kind_of(item)) != text:
                self._object(item, kind, _IDENTITY, 0)

    def _object(self, item: Any, kind: int, matrix: _Matrix, depth: int) -> None:
        if len(self.edges) > MOST_EDGES:
            return
        if kind == c.FPDF_PAGEOBJ_PATH:
            self.shapes += 1
            self.edges += self._path(item, matrix)
        elif kind == c.FPDF_PAGEOBJ_IMAGE:
            box = self._bounds(item, matrix)
            self.pictures += box.width * box.height
        elif kind == c.FPDF_PAGEOBJ_FORM and depth < _DEEPEST:
            inner = _product(self._matrix(item), matrix)
            for index in range(c.FPDFFormObj_CountObjects(item)):
                child = c.FPDFFormObj_GetObject(item, index)
                self._object(child, c.FPDFPageObj_GetType(child), inner, depth + 1)

    def _path(self, item: Any, matrix: _Matrix) -> Iterator[Box]:
        box = self._bounds(item, matrix)
        if min(box.width, box.height) <= _THIN:
            if max(box.width, box.height) >= _SHORTEST:
                yield box
            return
        yield from self._segments(item, _product(self._matrix(item), matrix))

    def _segments(self, item: Any, matrix: _Matrix) -> Iterator[Box]:
        x, y = ctypes.c_float(), ctypes.c_float()
        start = last = (0.0, 0.0)
        for index in range(min(c.FPDFPath_CountSegments(item), MOST_EDGES)):
            segment = c.FPDFPath_GetPathSegment(item, index)
            c.FPDFPathSegment_GetPoint(segment, x, y)
            here = _at(matrix, x.value, y.value)
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
        box = self.frame.box(*start, *end)
        if min(box.width, box.height) <= 1.0 and max(box.width, box.height) >= _SHORTEST:
            yield box

    def _bounds(self, item: Any, matrix: _Matrix) -> Box:
        left, bottom, right, top = self._corners
        c.FPDFPageObj_GetBounds(item, left, bottom, right, top)
        near, far = _at(matrix, left.value, bottom.value), _at(matrix, right.value, top.value)
        return self.frame.box(*near, *far)

    def _matrix(self, item: Any) -> _Matrix:
        found = c.FS_MATRIX()
        c.FPDFPageObj_GetMatrix(item, found)
        return found.a, found.b, found.c, found.d, found.e, found.f


def _at(matrix: _Matrix, x: float, y: float) -> tuple[float, float]:
    a, b, c, d, e, f = matrix
    return a * x + c * y + e, b * x + d * y + f


def _product(inner: _Matrix, outer: _Matrix) -> _Matrix:
    a, b, c, d, e, f = inner
    p, q, r, s, t, u = outer
    return a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s, e * p + f * r + t, e * q + f * s + u


def grids_of(edges: Sequence[Box]) -> list[Grid] | None:
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
    tables = plumber.cells_to_tables(_cells(crossings))
    return [grid for grid in map(_grid, tables) if len(grid.rows) > 1 and len(grid.rows[0]) > 1]


def _cells(crossings: Mapping[_Point, Mapping[str, Sequence[Any]]]) -> list[_Corners]:
    # The smallest cell below and to the right of each crossing: pdfplumber's `intersections_to_cells`, which looks
    # through all crossings for each of them.
    down = {point: set(map(_CORNERS, lines["v"])) for point, lines in crossings.items()}
    across = {point: set(map(_CORNERS, lines["h"])) for point, lines in crossings.items()}
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


def _grid(cells: Iterable[_Corners]) -> Grid:
    boxes = [Box(*cell) for cell in cells]
    lefts = sorted({box.x0 for box in boxes})
    found = {(box.top, box.x0): box for box in boxes}
    tops = sorted({box.top for box in boxes})
    return Grid(tuple(tuple(found.get((top, left)) for left in lefts) for top in tops))
