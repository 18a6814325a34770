"""Split a document into regions, and these into chunks of 500 characters with 50 of overlap.

A region is a section with its headings, or a table: the chunks of its rows keep their header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from task.documents.model import Block

if TYPE_CHECKING:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

CHUNK_CHARS = 500
OVERLAP_CHARS = 50
SEPARATORS = ("\n\n", "\n", ". ", " ", "")
CHUNKING = f"recursive-{CHUNK_CHARS}-{OVERLAP_CHARS}-2"  # changes whenever the same text would be cut differently
_PIECE_CHARS = 50_000  # a longer text without breaks would cost the splitter quadratic time
_HEADING_CHARS = 160
_STEP = CHUNK_CHARS - OVERLAP_CHARS
_BLANK = re.compile(r"\s")
GAP = "\n\n"
_HASHES = re.compile(r"(#{1,6})\s+(\S(?:.*[^\s#])?)[\s#]*$")
_NUMBERED = re.compile(r"(\d{1,3}(?:\.\d{1,3}){0,4})[.)]?\s+(\S.{0,70})$")
_RULE = re.compile(r"\|?\s*+:?-{3,}+:?\s*+(?>(?:\|\s*+:?-{3,}+:?\s*+)*)\|?$")
_FENCE = ("```", "~~~")
_LONGEST_TITLE = 90
_Heading = tuple[int, str]  # its level and title


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """A span of the document's text: its page, the headings above it from the outermost, and its rows of a table.

    `header` are the two lines above a table's rows; they are not part of the span.
    """

    start: int
    end: int
    page: int | None = None
    headings: tuple[str, ...] = ()
    header: str = ""
    rows: tuple[int, int] | None = None


class Chunk(str):
    """A chunk's text with its `place`; anywhere else a plain `str`."""

    __slots__ = ("place",)
    place: ChunkPlace

    def __new__(cls, text: str, place: ChunkPlace) -> Chunk:
        chunk = super().__new__(cls, text)
        chunk.place = place
        return chunk

    def indexed(self, file: str = "") -> str:
        """The text to search: headings above it, with the file's name if it is given, and the text itself."""
        path = " > ".join(filter(None, (file, *self.place.headings)))[-_HEADING_CHARS:]
        return f"{path}\n{self}" if path and not self.startswith(path) else str(self)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ChunkedDocument:
    """A document's whole text and its chunks in reading order; `notes` report how it was read."""

    name: str
    text: str
    chunks: tuple[Chunk, ...]
    notes: tuple[str, ...] = ()


def chunk_document(name: str, blocks: Sequence[Block], notes: Sequence[str] = ()) -> ChunkedDocument:
    """The document in chunks, none of which crosses a page, a heading or the edge of a table."""
    text = GAP.join(block.whole for block in blocks)  # to which the spans of regions refer
    chunks: list[Chunk] = []
    for region in regions(blocks):
        if not region.header:
            for start, piece in _split(text, region.start, region.end):
                chunks.append(Chunk(piece, replace(region, start=start, end=start + len(piece))))
            continue
        room = CHUNK_CHARS - len(region.header) - 1
        for place in _grouped_rows(region, text, room):
            rows = text[place.start : place.end]
            if len(rows) > room:  # one that is too wide
                chunks += _row_in_pieces(rows, place)
            else:
                chunks.append(Chunk(f"{region.header}\n{rows}", place))
    return ChunkedDocument(name, text, tuple(chunk for chunk in chunks if chunk.strip()), tuple(notes))


def _split(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    while start < end:
        stop = end
        if end - start > _PIECE_CHARS:  # cut where there is a blank, if possible
            latest = start + _PIECE_CHARS
            blank = max(text.rfind("\n", start + 1, latest), text.rfind(" ", latest - CHUNK_CHARS, latest))
            stop = blank + 1 if blank > start else latest
        if not _BLANK.search(text, start, stop):
            # The splitter would split such a text letter by letter.
            yield from ((at, text[at : min(at + CHUNK_CHARS, stop)]) for at in range(start, stop, _STEP))
            start = stop
            continue
        for found in _splitter().create_documents([text[start:stop]]):
            yield start + int(found.metadata["start_index"]), found.page_content
        start = stop


@cache
def _splitter() -> RecursiveCharacterTextSplitter:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter(
        chunk_size=CHUNK_CHARS,
        chunk_overlap=OVERLAP_CHARS,
        separators=list(SEPARATORS),
        keep_separator="end",
        add_start_index=True,
    )


def _grouped_rows(table: ChunkPlace, text: str, room: int) -> Iterator[ChunkPlace]:
    start, number, first = table.start, 0, 0
    group: ChunkPlace | None = None
    while start < table.end:
        end = text.find("\n", start, table.end)
        end = table.end if end < 0 else end
        number += 1
        if end > start:
            if group is None or end - group.start > room:
                if group is not None:
                    yield group
                group, first = replace(table, start=start), number
            group = replace(group, end=end, rows=(first, number))
        start = end + 1
    if group is not None:
        yield group


def _row_in_pieces(row: str, place: ChunkPlace) -> Iterator[Chunk]:
    # Lines `column: value`, so that each piece of a wide row keeps the names of its columns.
    names, lines = _cells(place.header.partition("\n")[0]), list[str]()
    for number, cell in enumerate(_cells(row)):
        name = names[number][: CHUNK_CHARS // 4] if number < len(names) else ""
        for _, piece in _split(cell, 0, len(cell)):
            line = f"{name}: {piece}" if name else piece
            if lines and len("\n".join((*lines, line))) > CHUNK_CHARS:
                yield Chunk("\n".join(lines), place)
                lines = []
            lines.append(line)
    if lines:
        yield Chunk("\n".join(lines), place)


def _cells(line: str) -> list[str]:
    cells = line.strip().replace("\\|", "\0").strip("|").split("|")
    return [cell.strip().replace("\0", "|") for cell in cells]


def regions(blocks: Sequence[Block]) -> Iterator[ChunkPlace]:
    """The document's sections and tables in reading order; a heading also applies to the pages after it."""
    start, headings = 0, list[_Heading]()
    for block in blocks:
        if block.heading:
            first = start + len(block.heading) + 1
            yield ChunkPlace(first, first + len(block.text), block.page, _path(headings), block.heading)
        elif block.page is None or block.text != f"[Page {block.page}]":
            yield from _text_regions(block.text, start, block.page, headings)
        start += len(block.whole) + len(GAP)


def _path(headings: Sequence[_Heading]) -> tuple[str, ...]:
    return tuple(title for _, title in headings)


def _text_regions(text: str, offset: int, page: int | None, headings: list[_Heading]) -> Iterator[ChunkPlace]:
    lines = text.split("\n")
    starts = list(accumulate((len(line) + 1 for line in lines), initial=offset))  # and where a further line would
    start, only_headings, fenced = offset, True, False
    place = 0
    while place < len(lines):
        fenced ^= lines[place].lstrip().startswith(_FENCE)
        rows = 0 if fenced else _table_rows(lines, place)
        title = None if fenced or rows else _title(lines, place)
        if (rows or title is not None) and not only_headings:
            yield ChunkPlace(start, starts[place], page, _path(headings))
            start, only_headings = starts[place], True
        if rows:
            header = "\n".join(lines[place : place + 2])
            end = place + 2 + rows
            yield ChunkPlace(starts[place + 2], starts[end] - 1, page, _path(headings), header)
            place, start = end, starts[end]
            continue
        if title is not None:
            headings[:] = [*(above for above in headings if above[0] < title[0]), title]
        elif lines[place].strip():
            only_headings = False
        place += 1
    if text[start - offset :].strip():
        yield ChunkPlace(start, offset + len(text), page, _path(headings))


def _table_rows(lines: Sequence[str], place: int) -> int:
    # The number of rows of the Markdown table whose header is at `place`; 0: there is no table.
    rule = lines[place + 1] if place + 1 < len(lines) else ""
    if "|" not in lines[place] or "|" not in rule or not _RULE.match(rule.strip()):
        return 0
    end = place + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    return end - place - 2


def _title(lines: Sequence[str], place: int) -> _Heading | None:
    text = lines[place].strip()
    if not text or len(text) > _LONGEST_TITLE + 8:
        return None
    if match := _HASHES.match(text):
        return len(match[1]), match[2]
    # Without marks, a heading has an empty line above it and is not a sentence.
    if (place and lines[place - 1].strip()) or text[-1] in ".,;:!?|":
        return None
    if (match := _NUMBERED.match(text)) and not match[2][0].islower():
        following = next(filter(None, map(str.strip, lines[place + 1 : place + 3])), "")
        in_list = _NUMBERED.match(following) and lines[place + 1].strip()
        if not in_list:
            return 2 + match[1].count("."), text
    if len(text) >= 4 and text.isupper() and sum(map(str.isalpha, text)) > len(text) // 2:
        return 1, text
    return None
