"""What a reader of a PDF's text should know, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from task.documents.ocr import HOW_TO_GET_IT

_MOST_RANGES = 20


@dataclass(slots=True)
class Findings:
    """What was found while a PDF was read; lists are of page numbers."""

    pages: int = 0
    last_read: int | None = None
    is_encrypted: bool = False
    is_cut_off: bool = False
    is_mended: bool = False
    is_dynamic: bool = False
    has_ocr: bool = False
    attachments: int = 0
    fields: int = 0
    by_ocr: list[int] = field(default_factory=list[int])
    pictures: list[int] = field(default_factory=list[int])
    blank: list[int] = field(default_factory=list[int])
    noise: list[int] = field(default_factory=list[int])
    broken: list[int] = field(default_factory=list[int])
    without_tables: list[int] = field(default_factory=list[int])

    def notes(self) -> tuple[str, ...]:
        """The sentences of the report; the number of pages always, the rest where there is something to say."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        yield f"{self.pages:,} page{'' if self.pages == 1 else 's'}"
        if self.last_read is not None:
            yield f"cut off: only pages 1-{self.last_read:,} were read"
        if self.is_mended:
            yield "the file is damaged or cut off: these are the pages that could be recovered"
        elif self.is_cut_off:
            yield "the file is damaged at its end: pages may be missing"
        if self.is_encrypted:
            yield "encrypted, opened without a password"
        if self.is_dynamic:
            yield "a dynamic form (XFA): what it shows in Adobe Reader is not in its pages"
        yield from self._about_pages()
        if self.fields:
            yield f"form fields: {self.fields}"
        if self.attachments:
            yield f"embedded files not read: {self.attachments}"

    def _about_pages(self) -> Iterator[str]:
        if self.by_ocr:
            yield f"read by OCR, mistakes are likely: {_named(self.by_ocr)}"
        if self.pictures:
            why = "OCR found nothing or had reached its limit" if self.has_ocr else HOW_TO_GET_IT
            yield f"without text, scanned or drawn: {_named(self.pictures)} ({why})"
        if self.blank:
            yield f"without text, {'lost or blank' if self.is_mended else 'blank'}: {_named(self.blank)}"
        if self.noise:
            yield f"without readable text, its letters cannot be told: {_named(self.noise)}"
        if self.broken:
            yield f"damaged and not read: {_named(self.broken)}"
        if self.without_tables:
            yield f"tables given as plain text: {_named(self.without_tables)}"


def _named(pages: Sequence[int]) -> str:
    """`page 3`, `pages 1-4, 7`; many are cut."""
    runs = [list(run) for _, run in groupby(enumerate(pages), key=lambda item: item[1] - item[0])]
    ranges = [f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs]
    shown = ", ".join(ranges[:_MOST_RANGES]) + ", ..." * (len(ranges) > _MOST_RANGES)
    return f"page {shown}" if len(pages) == 1 else f"pages {shown}"
