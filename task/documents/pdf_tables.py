"""Tables with ruling lines on a page of a PDF, found from its lines by pdfplumber."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from task.documents.pdf_frame import Box

MOST_CROSSINGS = 5_000  # pdfplumber's search takes a second for that many
_TOLERANCE = 3.0


@dataclass(frozen=True, slots=True)
class Grid:
    """A table's cells, row by row; None where a cell to the left or above reaches over."""

    rows: tuple[tuple[Box | None, ...], ...]

    @property
    def cells(self) -> list[Box]:
        return [cell for row in self.rows for cell in row if cell is not None]

    @property
    def box(self) -> Box:
        return reduce(Box.around, self.cells)


class TooDense(Exception):
    """More lines cross on the page than can be made cells of in a reasonable time."""


def grids_of(edges: Sequence[Box]) -> list[Grid]:
    """The tables of at least two rows and two columns that the lines make, from the top of the page.

    Raises:
        TooDense: they cross too often.
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
        raise TooDense
    tables = plumber.cells_to_tables(plumber.intersections_to_cells(crossings))
    return [grid for grid in map(_grid, tables) if len(grid.rows) > 1 and len(grid.rows[0]) > 1]


def _edge(box: Box, orientation: str) -> dict[str, Any]:
    x, y = (box.x0 + box.x1) / 2, (box.top + box.bottom) / 2
    line = Box(box.x0, y, box.x1, y) if orientation == "h" else Box(x, box.top, x, box.bottom)
    return {"orientation": orientation, "width": line.width, "height": line.height, **line._asdict()}


def _grid(cells: Iterable[tuple[float, float, float, float]]) -> Grid:
    boxes = [Box(*cell) for cell in cells]
    lefts = sorted({box.x0 for box in boxes})
    found = {(box.top, box.x0): box for box in boxes}
    tops = sorted({box.top for box in boxes})
    return Grid(tuple(tuple(found.get((top, left)) for left in lefts) for top in tops))
