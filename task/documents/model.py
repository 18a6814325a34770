"""A document once it is read: blocks of text, notes on how it was read, and pages a model can read one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from task.errors import ToolError

PAGE_CHARS = 10_000
_GAP = "\n\n"


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
        first, *rest = _cut(block, room, size)
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


def _cut(block: Block, room: int, size: int) -> list[str]:
    if len(block.whole) <= room:
        return [block.whole]
    # A header that fills most of a page leaves no room for rows.
    if block.heading and len(block.heading) <= room // 2:
        return _cut_rows(block, room, size)
    return _cut_text(block.whole, room, size)


def _cut_text(text: str, room: int, size: int) -> list[str]:
    pieces: list[str] = []
    start = 0
    spare = (room - len(text)) % size
    while len(text) - start > room:
        end = _break(text, start, start + room, min(spare, size // 5))
        spare -= start + room - end
        pieces.append(text[start:end])
        start, room = end, size
    return [*pieces, text[start:]]


def _break(text: str, start: int, end: int, spare: int) -> int:
    earliest = max(start + 1, end - spare)
    for mark in ("\n", " "):
        found = text.rfind(mark, earliest - 1, end)
        if found >= 0:
            return found + 1
    return end


def _cut_rows(block: Block, room: int, size: int) -> list[str]:
    pieces: list[str] = []
    rows, start = block.text, 0
    while start < len(rows):
        if start and rows[start - 1] != "\n":
            # The rest of a row longer than a page stands alone: under the header it would have the wrong column names.
            heading, end = "", _first_row_end(rows, start, start + room)
        else:
            heading = block.heading + "\n"
            end = _last_row_end(rows, start, start + room - len(heading))
        pieces.append(heading + rows[start:end].removesuffix("\n"))
        start, room = end, size
    return pieces


def _first_row_end(rows: str, start: int, end: int) -> int:
    row_end = rows.find("\n", start)
    return row_end + 1 if 0 <= row_end <= end else min(end, len(rows))


def _last_row_end(rows: str, start: int, end: int) -> int:
    if end >= len(rows):
        return len(rows)
    return rows.rfind("\n", start, end + 1) + 1 or end
