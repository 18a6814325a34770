"""A document once it is read: pieces rendered as Markdown, blocks, notes on how it was read, and pages for a model."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from task.errors import ToolError

Kind = Literal["heading", "text", "item", "code", "table"]
PAGE_CHARS = 10_000
_REPEATED_CHARS, _FILLED_CELLS = 4_000_000, 100_000
_GAP = "\n\n"
_DEEPEST = 8
_FENCES = re.compile("`{3,}")


class UnsupportedFile(ToolError):
    """A file without a reader; the text names the supported types."""


class NotText(ToolError):
    """Bytes that are not text in any encoding."""


class Unreadable(ToolError):
    """A file of a known format that is encrypted or damaged; the text names the reason and what would help."""


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a document; `heading` (a table's header row) is repeated where the block is cut into pages.

    `page` is the number of the document's own page, sheet or slide, counted from 1, where there is one.
    """

    text: str
    heading: str = ""
    page: int | None = None

    @property
    def whole(self) -> str:
        return "\n".join(filter(None, (self.heading, self.text)))


@dataclass(frozen=True, slots=True)
class Extraction:
    """A document's text, and notes on reading it: encoding, delimiter, what was repaired or lost."""

    blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n\n".join(block.whole for block in self.blocks)

    @property
    def is_empty(self) -> bool:
        return not any(block.text.strip() or block.heading for block in self.blocks)


def packed(document: Extraction) -> bytes:
    """The document as lines of JSON, its notes and then its blocks; half a surrogate pair becomes a question mark."""
    # Line by line: one call for all of a long document would block the event loop.
    rows = (document.notes, *((block.text, block.heading, block.page) for block in document.blocks))
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(errors="replace")


def unpacked(content: bytes) -> Extraction:
    """The document that was packed."""
    notes, *rows = map(json.loads, content.split(b"\n"))
    return Extraction(tuple(Block(*row) for row in rows), tuple(notes))


def pages_of(document: Extraction) -> tuple[str, ...]:
    """The document in pages, starting with the report on how it was read; none when there is nothing to report."""
    report = f"**Report**: {'; '.join(document.notes)}" if document.notes else ""
    if not document.is_empty:
        return paginate((Block(report), *document.blocks) if report else document.blocks)
    return (f"The file contains no readable text.\n\n{report}",) if report else ()


def paginate(blocks: Sequence[Block], size: int = PAGE_CHARS) -> tuple[str, ...]:
    """The blocks in pages of at most `size` characters.

    Text takes as few pages as its length needs and is cut at line ends where that takes no extra page. A table is cut
    between rows, and its header row is repeated.
    """
    pages: list[str] = []
    page = ""
    for block in blocks:
        room = size - len(page) - len(_GAP) if page else size
        if page and room < min(len(block.whole), max(size // 5, 2 * len(block.heading))):
            pages.append(page)
            page, room = "", size
        # A header that fills most of a page leaves no room for rows.
        is_table = block.heading and len(block.heading) <= room // 2 and len(block.whole) > room
        first, *rest = _cut_rows(block, room, size) if is_table else _cut_text(block.whole, room, size)
        pages += [page + _GAP + first if page else first, *rest]
        page = pages.pop()
    return (*pages, page) if page else tuple(pages)


def page_of(pages: Sequence[str], page: int, kind: str = "file") -> str:
    """The page with a footer that numbers it, where there are several; `kind` is what the pages are of.

    Raises:
        ToolError: there is no such page.
    """
    if not pages:
        return f"The {kind} is empty: it holds no text."
    total = len(pages)
    if not 1 <= page <= total:
        valid = f"its pages are 1 to {total}" if total > 1 else "its only page is 1"
        raise ToolError(f"The {kind} has no page {page}: {valid}.")
    return pages[page - 1] if total == 1 else f"{pages[page - 1]}\n\n**Page #{page}. Total pages: {total}**"


def _cut_text(text: str, room: int, size: int) -> list[str]:
    pieces: list[str] = []
    start = 0
    spare = (room - len(text)) % size
    while len(text) - start > room:
        end = start + room
        earliest = max(start + 1, end - min(spare, size // 5))
        found = next((place for mark in "\n " if (place := text.rfind(mark, earliest - 1, end)) >= 0), end - 1)
        spare -= end - found - 1
        pieces.append(text[start : found + 1])
        start, room = found + 1, size
    return [*pieces, text[start:]]


def _cut_rows(block: Block, room: int, size: int) -> list[str]:
    pieces: list[str] = []
    rows, start = block.text, 0
    while start < len(rows):
        if start and rows[start - 1] != "\n":
            # The rest of a row longer than a page stands alone: under the header it would have the wrong column names.
            heading, row_end = "", rows.find("\n", start) + 1
            end = row_end if 0 < row_end <= start + room + 1 else min(start + room, len(rows))
        else:
            heading = block.heading + "\n"
            end = start + room - len(heading)
            end = rows.rfind("\n", start, end + 1) + 1 or end if end < len(rows) else len(rows)
        pieces.append(heading + rows[start:end].removesuffix("\n"))
        start, room = end, size
    return pieces


@dataclass(frozen=True, slots=True)
class Piece:
    """One heading, paragraph, list item, code listing or table; `level` is a heading's, `rows` are a table's."""

    kind: Kind
    text: str = ""
    level: int = 0
    rows: tuple[tuple[str, ...], ...] = ()


def heading(text: str, level: int) -> Piece:
    return Piece("heading", f"{'#' * min(max(level, 1), 6)} {' '.join(text.split())}", level)


def item(text: str, depth: int, marker: str = "-") -> Piece:
    """An entry of a list; `depth` counts from 0. Very deep lists are not indented any further."""
    indent = "  " * min(depth, _DEEPEST)
    continued = text.strip().replace("\n", f"\n{indent}{' ' * (len(marker) + 1)}")
    return Piece("item", f"{indent}{marker} {continued}")


def code(text: str, language: str = "") -> Piece:
    fence = "`" * max(3, 1 + max(map(len, _FENCES.findall(text)), default=0))
    return Piece("code", f"{fence}{language}\n{text.strip(chr(10))}\n{fence}")


def table(rows: Iterable[Sequence[str]]) -> Piece | None:
    """A table of the rows that hold text; None where there are none."""
    stripped = (tuple(cell.strip() for cell in row) for row in rows)
    kept = tuple(row for row in stripped if any(row))
    return Piece("table", rows=kept) if kept else None


class Repeats:
    """Repeats the texts of cells that span others, until a document has gained a few million characters by it."""

    def __init__(self) -> None:
        self._left = _REPEATED_CHARS

    def of(self, text: str, times: int = 1) -> list[str]:
        """The text so many times, or not at all where that would be too much."""
        self._left -= times * (len(text) + 3)  # and what a table has between two cells
        return [text] * times if self._left >= 0 else []


def as_markdown(rows: Sequence[Sequence[str]], page: int | None = None) -> Block:
    """The rows as a Markdown table as wide as the widest, the first as its header; `|` and line ends are escaped.

    Where far more cells would be filled in than there are, short rows stay short, which Markdown allows.
    """
    width, cells = max(map(len, rows)), sum(map(len, rows))
    if width * len(rows) > 10 * cells + _FILLED_CELLS:
        header, *body = rows
    else:
        header, *body = (row if len(row) == width else (*row, *[""] * (width - len(row))) for row in rows)
    heading = f"{_row(header)}\n|{' --- |' * len(header)}"
    return Block("\n".join(map(_row, body)), heading, page)


def _row(cells: Iterable[str]) -> str:
    line = "\0".join(cells)
    if "|" in line or "\n" in line:
        line = line.replace("|", "\\|").replace("\n", "<br>")
    return f"| {line.replace(chr(0), ' | ')} |"


def blocks_of(pieces: Iterable[Piece], page: int | None = None) -> tuple[Block, ...]:
    """The blocks of a document or of one of its pages: one per table, and one for everything between two tables."""
    blocks: list[Block] = []
    for is_table, group in groupby(pieces, key=lambda piece: piece.kind == "table"):
        if is_table:
            blocks += (as_markdown(piece.rows, page) for piece in group)
        else:
            runs = groupby(group, key=lambda piece: piece.kind)
            texts = (("\n" if kind == "item" else _GAP).join(piece.text for piece in run) for kind, run in runs)
            blocks.append(Block(_GAP.join(texts), page=page))
    return tuple(blocks)


def counted(number: int, thing: str) -> str:
    """The number with its noun, as in `1 row` or `2,000 rows`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last number of each run of consecutive ones."""
    runs = (list(run) for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]))
    return [(run[0][1], run[-1][1]) for run in runs]
