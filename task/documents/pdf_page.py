"""One page of a PDF as blocks: its text, columns in reading order, tables with lines as Markdown."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from task.documents.model import Block
from task.documents.pdf_layout import Box, Frame, Piece, frame_of, in_reading_order, may_have_columns
from task.documents.pdf_tables import Grid, TooDense, grids_of, marks_of
from task.documents.tables import as_markdown

_LINE_END_HYPHEN = re.compile(r"[\x02\ufffe][\n ]?(?=(\w?))")
_UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\ue000-\uf8ff\ufffd]")
_FEW_LETTERS = 20
_EDGES_OF_A_TABLE = 5
_SHAPES_OF_A_TEXT = 20
_MOST_OF_THE_PAGE = 0.5
_SMALLEST_GAP = 9.0
HYPHEN = "\x02"  # pdfium's mark of a hyphen that ends a line, which it takes out of its text together with the line end


@dataclass(frozen=True, slots=True)
class PageContent:
    """A page's blocks; `letters` counts its characters, `pictures` is the share of the page they cover.

    `shapes` counts the lines and areas drawn on it. Noise are letters that the file gives no meaning to; `tables_left`
    says that tables stand in the text as lines.
    """

    blocks: tuple[Block, ...]
    letters: int
    pictures: float
    shapes: int
    is_noise: bool = False
    tables_left: bool = False

    @property
    def is_picture(self) -> bool:
        """Whether its text can only be seen: a scan with no more than a page number, or letters drawn as shapes."""
        if not self.letters:
            return self.pictures > 0 or self.shapes >= _SHAPES_OF_A_TEXT
        return self.letters < _FEW_LETTERS and self.pictures >= _MOST_OF_THE_PAGE


def read_page(page: Any, number: int, *, with_tables: bool = True) -> PageContent:
    """Read a pypdfium2 page; without tables their cells stand in the text line by line."""
    frame = frame_of(page)
    marks = marks_of(page, frame)
    grids, left = _grids(marks.edges, with_tables)
    textpage = page.get_textpage()
    try:
        if grids or may_have_columns(textpage, is_lying=page.get_rotation() in (90, 270)):
            blocks = _laid_out(textpage, frame, grids, number)
        else:
            blocks = (Block(_plain(textpage.get_text_range()), page=number),)
    finally:
        textpage.close()
    text = "".join(block.whole for block in blocks)
    return PageContent(blocks, len("".join(text.split())), marks.pictures, marks.shapes, _is_noise(text), left)


def _grids(edges: Sequence[Box], with_tables: bool) -> tuple[list[Grid], bool]:
    if not with_tables:
        return [], len(edges) >= _EDGES_OF_A_TABLE
    try:
        return grids_of(edges), False
    except TooDense:
        return [], True


def _laid_out(textpage: Any, frame: Frame, grids: Sequence[Grid], number: int) -> tuple[Block, ...]:
    owner = {cell: grid for grid in grids for cell in grid.cells}
    runs = runs_of(textpage, frame, list(owner))
    texts: dict[Box, list[str]] = {cell: [] for cell in owner}
    for run in runs:
        if run.cell is not None:
            texts[run.cell].append(run.text)
    pieces: list[Piece[Run | Grid]] = []
    placed: set[int] = set()
    for run in runs:
        if run.cell is None:
            pieces.append(Piece(run.box, run.line, len(run.text), run))
        elif id(grid := owner[run.cell]) not in placed:
            placed.add(id(grid))
            pieces.append(Piece(grid.box, run.line, 0, grid))
    return tuple(_blocks(in_reading_order(pieces), texts, number))


def _blocks(pieces: Sequence[Piece[Run | Grid]], texts: dict[Box, list[str]], number: int) -> Iterator[Block]:
    for is_text, group in groupby(pieces, key=lambda piece: isinstance(piece.content, Run)):
        if is_text:
            lines = [" ".join(_texts(line)) for _, line in groupby(group, key=lambda piece: piece.line)]
            yield Block(_plain("\n".join(lines)), page=number)
            continue
        for piece in group:
            if isinstance(piece.content, Grid):
                yield replace(as_markdown(_rows(piece.content, texts)), page=number)


def _texts(pieces: Iterable[Piece[Run | Grid]]) -> Iterator[str]:
    return (piece.content.text for piece in pieces if isinstance(piece.content, Run))


def _rows(grid: Grid, texts: dict[Box, list[str]]) -> list[list[str]]:
    return [[_plain(" ".join(texts[cell])) if cell else "" for cell in row] for row in grid.rows]


def _plain(text: str) -> str:
    if "\x02" in text or "\ufffe" in text:
        text = _LINE_END_HYPHEN.sub(lambda found: "" if found[1].islower() else "-", text)
    return text.replace("\r\n", "\n")


def _is_noise(text: str) -> bool:
    return len(_UNREADABLE.findall(text)) > 0.3 * len(text)


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
