"""The straight horizontal and vertical lines drawn on a page of a PDF: rules, and the edges of rectangles."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

from task.documents.pdf_frame import Box, Frame

MOST_EDGES = 4_000  # more is a drawing, not a table
_THIN = 3.0
_SHORTEST = 4.0
_DEEPEST = 4
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
        import pypdfium2.raw as pdfium

        self.c, self._text = pdfium, pdfium.FPDF_PAGEOBJ_TEXT
        self.frame, self.edges, self.pictures, self.shapes = frame, list[Box](), 0.0, 0
        self._corners = tuple(ctypes.c_float() for _ in range(4))

    def page(self, page: Any) -> None:
        raw, item_at, kind_of, text = page.raw, self.c.FPDFPage_GetObject, self.c.FPDFPageObj_GetType, self._text
        for index in range(self.c.FPDFPage_CountObjects(raw)):
            item = item_at(raw, index)
            if (kind := kind_of(item)) != text:
                self._object(item, kind, _IDENTITY, 0)

    def _object(self, item: Any, kind: int, matrix: _Matrix, depth: int) -> None:
        c = self.c
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
        c = self.c
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
        self.c.FPDFPageObj_GetBounds(item, left, bottom, right, top)
        near, far = _at(matrix, left.value, bottom.value), _at(matrix, right.value, top.value)
        return self.frame.box(*near, *far)

    def _matrix(self, item: Any) -> _Matrix:
        found = self.c.FS_MATRIX()
        self.c.FPDFPageObj_GetMatrix(item, found)
        return found.a, found.b, found.c, found.d, found.e, found.f


def _at(matrix: _Matrix, x: float, y: float) -> tuple[float, float]:
    a, b, c, d, e, f = matrix
    return a * x + c * y + e, b * x + d * y + f


def _product(inner: _Matrix, outer: _Matrix) -> _Matrix:
    a, b, c, d, e, f = inner
    p, q, r, s, t, u = outer
    return a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s, e * p + f * r + t, e * q + f * s + u
