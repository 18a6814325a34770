"""The text of a page of a PDF in runs: letters that stand together on one line, or in one cell of a table."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from task.documents.pdf_frame import Box, Frame

_SMALLEST_GAP = 9.0
HYPHEN = "\x02"  # pdfium's mark of a hyphen that ends a line, which it takes out of its text together with the line end


@dataclass(slots=True)
class Run:
    """Text, the box around it, the number of its line as pdfium tells lines, and the cell it stands in."""

    text: str
    box: Box
    line: int
    cell: Box | None


def runs_of(textpage: Any, frame: Frame, cells: Sequence[Box] = ()) -> list[Run]:
    """The runs in the order in which the page draws them."""
    runs: list[Run] = []
    line, blank, last = 0, "", None
    for letter, box in _letters(textpage, frame):
        if letter in "\r\n":
            line += letter == "\n"
            blank, last = "", None
            continue
        if letter.isspace():
            blank = " "
            continue
        cell = _cell_at(cells, box, runs[-1].cell if runs else None)
        if last is None or cell is not runs[-1].cell or (cell is None and _are_apart(last, box)):
            runs.append(Run(letter, box, line, cell))
        else:
            runs[-1].text += blank + letter
            runs[-1].box = runs[-1].box.around(box)
        blank, last = "", box
        if letter == HYPHEN:
            line, last = line + 1, None
    return runs


def _letters(textpage: Any, frame: Frame) -> Iterator[tuple[str, Box]]:
    import pypdfium2.raw as c

    raw = textpage.raw
    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    high = 0
    for index in range(textpage.count_chars()):
        code = c.FPDFText_GetUnicode(raw, index)
        if 0xD800 <= code < 0xDC00:
            high = code
            continue
        if high and 0xDC00 <= code < 0xE000:
            code = 0x10000 + ((high - 0xD800) << 10) + code - 0xDC00
        high = 0
        if code == 0 or 0xD800 <= code < 0xE000:
            continue
        c.FPDFText_GetCharBox(raw, index, left, right, bottom, top)
        yield chr(code), frame.box(left.value, bottom.value, right.value, top.value)


def _are_apart(last: Box, box: Box) -> bool:
    gap = max(box.x0 - last.x1, last.x0 - box.x1)
    # Words of a justified line may stand apart, but not by much more than a letter's height.
    return gap > max(_SMALLEST_GAP, 1.2 * max(last.height, box.height))


def _cell_at(cells: Sequence[Box], box: Box, last: Box | None) -> Box | None:
    if not cells:
        return None
    x, y = (box.x0 + box.x1) / 2, (box.top + box.bottom) / 2
    if last is not None and last.holds(x, y):
        return last
    return next((cell for cell in cells if cell.holds(x, y)), None)
