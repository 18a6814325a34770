"""Divide a document into regions: sections with their headings, tables with their header rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from task.documents.model import Block

GAP = "\n\n"
_HASHES = re.compile(r"(#{1,6})\s+(\S(?:.*[^\s#])?)[\s#]*$")
_NUMBERED = re.compile(r"(\d{1,3}(?:\.\d{1,3}){0,4})[.)]?\s+(\S.{0,70})$")
_RULE = re.compile(r"\|?\s*+:?-{3,}+:?\s*+(?:\|\s*+:?-{3,}+:?\s*+)*+\|?$")
_FENCE = ("```", "~~~")
_LONGEST_TITLE = 90


@dataclass(frozen=True, slots=True)
class Region:
    """A span of the document's text, with the `headings` above it from the outermost to its own.

    Of a table, `header` are the first two lines of Markdown and the span is its rows. `page` is the document's number.
    """

    start: int
    end: int
    headings: tuple[str, ...] = ()
    header: str = ""
    page: int | None = None


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def document_text(blocks: Sequence[Block]) -> str:
    """The whole text, to which the spans of regions refer."""
    return GAP.join(block.whole for block in blocks)


def regions(blocks: Sequence[Block]) -> Iterator[Region]:
    """The document's regions in reading order; a heading also applies to the pages after it."""
    start, headings = 0, _Headings()
    for block in blocks:
        if block.heading:
            first = start + len(block.heading) + 1
            yield Region(first, first + len(block.text), headings.path, block.heading, block.page)
        elif block.page is None or block.text != f"[Page {block.page}]":
            yield from _text_regions(block.text, start, block.page, headings)
        start += len(block.whole) + len(GAP)


class _Headings:
    """The current heading of each level."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(title for _, title in self._open)

    def enter(self, level: int, title: str) -> None:
        self._open = [(known, name) for known, name in self._open if known < level] + [(level, title)]


def _text_regions(text: str, offset: int, page: int | None, headings: _Headings) -> Iterator[Region]:
    lines: list[_Line] = []
    for piece in text.split("\n"):
        lines.append(_Line(lines[-1].end + 1 if lines else offset, piece))
    start, only_headings, fenced = offset, True, False
    place = 0
    while place < len(lines):
        line = lines[place]
        fenced ^= line.text.lstrip().startswith(_FENCE)
        if not fenced and (rows := _table_rows(lines, place)):
            if not only_headings:
                yield Region(start, line.start, headings.path, page=page)
            header = f"{line.text}\n{lines[place + 1].text}"
            yield Region(lines[place + 2].start, lines[place + 1 + rows].end, headings.path, header, page)
            place += 2 + rows
            start, only_headings = lines[place].start if place < len(lines) else offset + len(text), True
            continue
        title = None if fenced else _title(lines, place)
        if title is not None:
            if not only_headings:
                yield Region(start, line.start, headings.path, page=page)
                start, only_headings = line.start, True
            headings.enter(*title)
        elif line.text.strip():
            only_headings = False
        place += 1
    if text[start - offset :].strip():
        yield Region(start, offset + len(text), headings.path, page=page)


def _table_rows(lines: Sequence[_Line], place: int) -> int:
    # The number of rows of the Markdown table whose header is at `place`; 0: there is no table.
    if "|" not in lines[place].text or place + 2 >= len(lines) or not _RULE.match(lines[place + 1].text.strip()):
        return 0
    if "|" not in lines[place + 1].text:
        return 0
    rows = 0
    while place + 2 + rows < len(lines) and "|" in lines[place + 2 + rows].text:
        rows += 1
    return rows


def _title(lines: Sequence[_Line], place: int) -> tuple[int, str] | None:
    text = lines[place].text.strip()
    if not text or len(text) > _LONGEST_TITLE + 8:
        return None
    if match := _HASHES.match(text):
        return len(match[1]), match[2]
    # Without marks, a heading has an empty line above it and is not a sentence.
    if (place and lines[place - 1].text.strip()) or text[-1] in ".,;:!?|":
        return None
    if (match := _NUMBERED.match(text)) and not match[2][0].islower():
        following = next((line.text.strip() for line in lines[place + 1 : place + 3] if line.text.strip()), "")
        in_list = _NUMBERED.match(following) and lines[place + 1].text.strip()
        if not in_list:
            return 2 + match[1].count("."), text
    if len(text) >= 4 and text.isupper() and sum(map(str.isalpha, text)) > len(text) // 2:
        return 1, text
    return None
