"""One page of a PDF as blocks: its text, columns in reading order, tables with lines as Markdown."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pypdfium2.raw as c

from task.documents.model import Block, as_markdown
from task.documents.pdf_layout import (
    Box,
    Cells,
    Grid,
    Marks,
    PageFrame,
    TextRun,
    frame_of,
    grids_of,
    in_reading_order,
    may_have_columns,
)

_LINE_END__HYPHEN = re.compile(r"[\x02\ufffe][\n ]?(?=(\w?))")
_UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\ue000-\uf8ff\ufffd]")
# With the space in front, all of it: a run of spaces at the end is looked at once.
_WORDS = re.compile(r"(?<![\s\0])([\s\0]*)([^\s\0\x02]*\x02|[^\s\0\x02]+)")
_FEW_LETTERS = 20
_EDGES_OF_A_TABLE = 5
_SHAPES_OF_A_TEXT = 20
_MOST_OF_THE_PAGE = 0.5
_SMALLEST_GAP = 9.0
_HYPHEN = "\x02"  # pdfium's mark of a hyphen that ends a line, which its text omits together with the line end


@dataclass(frozen=True, slots=True)
class PageContent:
    """A page's blocks, the number of its letters, the share that pictures cover, the number of lines and areas drawn.

    Noise are letters that the file gives no meaning to; plain tables are in the text line by line.
    """

    blocks: tuple[Block, ...]
    letters: int
    pictures: float
    shapes: int
    is_noise: bool
    has_plain_tables: bool

    @property
    def is_picture(self) -> bool:
        """Whether its text can only be seen: a scan with no more than a page number, or letters drawn as shapes."""
        if not self.letters:
            return self.pictures > 0 or self.shapes >= _SHAPES_OF_A_TEXT
        return self.letters < _FEW_LETTERS and self.pictures >= _MOST_OF_THE_PAGE


def read_page(page: Any, number: int, *, with_tables: bool = True) -> PageContent:
    """Read a pypdfium2 page; without tables their cells are in the text line by line."""
    frame = frame_of(page)
    marks = Marks(page, frame)
    grids = grids_of(marks.edges) if with_tables else None
    with closing(page.get_textpage()) as textpage:
        if grids or may_have_columns(textpage, is_lying=page.get_rotation() in (90, 270)):
            blocks = tuple(_laid_out(textpage, frame, grids or (), number))
        else:
            blocks = (Block(_plain(textpage.get_text_range()), page=number),)
    text = "".join(block.whole for block in blocks)
    return PageContent(
        blocks,
        letters=len("".join(text.split())),
        pictures=marks.pictures,
        shapes=marks.shapes,
        is_noise=len(_UNREADABLE.findall(text)) > 0.3 * len(text),
        has_plain_tables=grids is None and (with_tables or len(marks.edges) >= _EDGES_OF_A_TABLE),
    )


def _laid_out(textpage: Any, frame: PageFrame, grids: Sequence[Grid], number: int) -> Iterator[Block]:
    owner = {cell: grid for grid in grids for cell in grid.cells}
    texts: dict[Box, list[str]] = {cell: [] for cell in owner}
    runs: list[TextRun] = []
    placed: set[int] = set()
    for run in _runs(textpage, frame, Cells(owner)):
        if run.cell is None:
            runs.append(run)
            continue
        texts[run.cell].append(run.text)
        if id(grid := owner[run.cell]) not in placed:
            placed.add(id(grid))
            runs.append(TextRun("", grid.box, run.line, grid=grid))
    for is_text, group in groupby(in_reading_order(runs), key=lambda run: run.grid is None):
        if is_text:
            lines = [" ".join(run.text for run in line) for _, line in groupby(group, key=lambda run: run.line)]
            yield Block(_plain("\n".join(lines)), page=number)
        else:
            for grid in (run.grid for run in group if run.grid):
                rows = [[_plain(" ".join(texts[cell])) if cell else "" for cell in row] for row in grid.rows]
                yield as_markdown(rows, number)


def _plain(text: str) -> str:
    if "\x02" in text or "\ufffe" in text:
        text = _LINE_END__HYPHEN.sub(lambda found: "" if found[1].islower() else "-", text)
    return text.replace("\r\n", "\n")


def _runs(textpage: Any, frame: PageFrame, cells: Cells) -> list[TextRun]:
    runs: list[TextRun] = []
    line, last, cell = 0, None, None
    raw, read, convert = textpage.raw, c.FPDFText_GetCharBox, frame.box  # looked up once: they run for each letter
    corners = left, right, bottom, top = tuple(ctypes.c_double() for _ in range(4))

    def box_at(index: int) -> Box:
        read(raw, index, *corners)
        return convert(left.value, bottom.value, right.value, top.value)

    for found in _WORDS.finditer(_text_by_index(textpage)):
        space, word = found[1].strip("\0"), found[2]
        if "\n" in space or "\r" in space:
            line, last = line + space.count("\n"), None
        blank = " " if space else ""
        for text, box, owner in _parts(word, found.start(2), box_at, cells, cell):
            apart = last is None or owner is not cell
            if last is not None and owner is None and not apart:
                # Words of a justified line may be spaced, but not by much more than a letter's height.
                widest = max(_SMALLEST_GAP, 1.2 * max(last.height, box.height))
                apart = max(box.x0 - last.x1, last.x0 - box.x1) > widest
            if apart:
                runs.append(TextRun(text, box, line, owner))
            else:
                runs[-1].text += blank + text
                if owner is None:
                    runs[-1].box = runs[-1].box.around(box)
            blank, last, cell = "", box, owner
        if word.endswith(_HYPHEN):
            line, last = line + 1, None
    return runs


def _parts(
    word: str, start: int, box_at: Callable[[int], Box], cells: Cells, cell: Box | None
) -> Iterator[tuple[str, Box, Box | None]]:
    # The word in one piece if a cell holds its first and its last letter, else its letters; each with box and cell.
    if cells:
        first = box_at(start)
        last = box_at(start + len(word) - 1) if len(word) > 1 else first
        owner = cells.around(first, cell)
        if owner is not None and cells.around(last, owner) is owner:
            yield word, last, owner
            return
    for index, letter in enumerate(word, start):
        box = box_at(index)
        cell = cells.around(box, cell)
        yield letter, box, cell


def _text_by_index(textpage: Any) -> str:
    # The letter of each index, NUL where there is none. The text in one piece may lack some, such as hyphens.
    whole, count = textpage.get_text_range(), textpage.count_chars()
    if len(whole) == count:
        return whole
    letters, high = list[str](), 0
    for index in range(count):
        code = c.FPDFText_GetUnicode(textpage.raw, index)
        if high and 0xDC00 <= code < 0xE000:
            code = 0x10000 + ((high - 0xD800) << 10) + code - 0xDC00
        high = code if 0xD800 <= code < 0xDC00 else 0
        letters.append("\0" if 0xD800 <= code < 0xE000 else chr(code))
    return "".join(letters)
