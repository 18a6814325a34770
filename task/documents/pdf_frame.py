"""Places on a page of a PDF as a reader sees them: the page's rotation applied, y counted from the top."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
        return self.x0 <= x < self.x1 and self.top <= y < self.bottom

    def around(self, other: Box) -> Box:
        """The smallest box that holds both."""
        return Box(
            min(self.x0, other.x0), min(self.top, other.top), max(self.x1, other.x1), max(self.bottom, other.bottom)
        )


class Frame(NamedTuple):
    """Turns a point of the page's own space into one as it is seen; an upright page has its upper left `corner`."""

    point: _Point
    corner: tuple[float, float] | None

    def box(self, left: float, bottom: float, right: float, top: float) -> Box:
        """The box between two corners of the page's own space."""
        if self.corner is not None and left <= right and bottom <= top:  # by far the most, and asked for each letter
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
