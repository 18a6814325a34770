"""Reader of PDF: text, ruled tables, form fields and scanned pages, whatever state the file is in."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from task.documents.model import Block, Extraction, NotText, Unreadable
from task.documents.ocr import HOW_TO_GET_IT, Ocr
from task.documents.pdf_page import PageContent, read_page
from task.documents.pdf_salvage import salvaged

MAX_PAGES = 5_000
MAX_CHARS = 20_000_000
TABLE_SECONDS = 20.0
READ_SECONDS = 45.0
_LOCKS = (4, 5)  # pdfium's codes for a missing password and for a lock it does not know
_DYNAMIC_FORM = 2  # pdfium's number for a form whose pages are made by a program within it
_PADDING = b"\0\r\n\t "
_MOST_RANGES = 20


def read_pdf(content: bytes, content_type: str = "", *, ocr: Ocr | None = None) -> Extraction:
    """Blocks of text, tables and form fields, each with its page's number; pages without text are named in the notes.

    `ocr` reads the pages that are pictures. A cut off file gives the pages that are left, a long one its first, a slow
    one those that were read in time.
    """
    if b"%PDF-" not in content[:1024] and b" obj" not in content:
        raise NotText("this is not a PDF")
    findings = Findings()
    document = _opened(content, findings)
    try:
        if kind := document.get_formtype():
            findings.is_dynamic = kind == _DYNAMIC_FORM
            document.init_forms()
        blocks = tuple(_Reading(document, findings, ocr or Ocr()).blocks())
        findings.attachments = document.count_attachments()
    finally:
        document.close()
    return Extraction(blocks, findings.notes())


def _opened(content: bytes, findings: Findings) -> Any:
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(content)
        findings.is_cut_off = b"%%EOF" not in content.rstrip(_PADDING)[-2048:]
    except pdfium.PdfiumError as error:
        if error.err_code in _LOCKS:
            raise Unreadable("it is encrypted and needs a password. Ask the user for a copy without one.") from error
        document = _mended(content)
        findings.is_mended = True
    findings.is_encrypted = pdfium.raw.FPDF_GetSecurityHandlerRevision(document) > 0
    return document


def _mended(content: bytes) -> Any:
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(salvaged(content) or b"")
    except pdfium.PdfiumError as error:
        raise Unreadable("it is damaged and no page of it is left. Ask the user to send it again.") from error
    return document


class _Reading:
    """One way through the pages of a document, within its limits."""

    def __init__(self, document: Any, findings: Findings, ocr: Ocr) -> None:
        self._document, self._findings = document, findings
        self._ocr = ocr
        self._seconds = 0.0  # without those of OCR, which has its own limit

    def blocks(self) -> Iterator[Block]:
        findings, room = self._findings, MAX_CHARS
        findings.has_ocr = self._ocr.command is not None
        findings.pages = total = len(self._document)
        for number in range(1, total + 1):
            if number > MAX_PAGES or room <= 0 or self._seconds > READ_SECONDS:
                findings.last_read = number - 1
                return
            blocks = self._blocks_of(number)
            if blocks and total > 1:
                yield Block(f"[Page {number}]", page=number)
            yield from blocks
            room -= sum(len(block.text) for block in blocks)

    def _blocks_of(self, number: int) -> list[Block]:
        import pypdfium2 as pdfium

        try:
            page = self._document[number - 1]
        except pdfium.PdfiumError:
            self._findings.broken.append(number)
            return []
        try:
            return self._read(page, number)
        except pdfium.PdfiumError:
            self._findings.broken.append(number)
            return []
        finally:
            page.close()

    def _read(self, page: Any, number: int) -> list[Block]:
        findings, began = self._findings, time.monotonic()
        found = read_page(page, number, with_tables=self._seconds < TABLE_SECONDS)
        fields = list(fields_of(page, self._document.formenv)) if self._document.formenv else []
        self._seconds += time.monotonic() - began
        findings.fields += len(fields)
        if found.tables_left:
            findings.without_tables.append(number)
        blocks = list(found.blocks)
        if found.is_noise or found.is_picture or not (found.letters or fields):
            blocks = self._by_ocr(page, number, found) or ([] if found.is_noise or not found.letters else blocks)
        if fields:
            blocks.append(Block("Form fields:\n" + "\n".join(f"- {line}" for line in fields), page=number))
        return blocks

    def _by_ocr(self, page: Any, number: int, found: PageContent) -> list[Block]:
        findings = self._findings
        text = self._ocr.text_of(page) if found.is_noise or found.is_picture else None
        if text:
            findings.by_ocr.append(number)
            return [Block(text, page=number)]
        (findings.noise if found.is_noise else findings.pictures if found.is_picture else findings.blank).append(number)
        return []


def fields_of(page: Any, form: Any) -> Iterator[str]:
    """One line per field on a pypdfium2 page: `name: value`; a box says whether it is checked."""
    import pypdfium2.raw as c

    for index in range(c.FPDFPage_GetAnnotCount(page)):
        annotation = c.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        try:
            if line := _field(annotation, form, c):
                yield line
        finally:
            c.FPDFPage_CloseAnnot(annotation)


def _field(annotation: Any, form: Any, c: Any) -> str:
    kind = c.FPDFAnnot_GetFormFieldType(form, annotation)
    name = _string(c.FPDFAnnot_GetFormFieldName, form, annotation, c)
    label = _string(c.FPDFAnnot_GetFormFieldAlternateName, form, annotation, c)
    shown = f"{name} ({label})" if name and label and label != name else name or label
    value = _string(c.FPDFAnnot_GetFormFieldValue, form, annotation, c)
    is_checked = bool(c.FPDFAnnot_IsChecked(form, annotation))
    if kind == c.FPDF_FORMFIELD_CHECKBOX:
        return f"{shown}: {'checked' if is_checked else 'not checked'}"
    if kind == c.FPDF_FORMFIELD_RADIOBUTTON:
        return f"{shown}: {value}" if is_checked else ""
    if kind in (c.FPDF_FORMFIELD_TEXTFIELD, c.FPDF_FORMFIELD_COMBOBOX, c.FPDF_FORMFIELD_LISTBOX):
        return f"{shown}: {' '.join(value.split()) or '(empty)'}"
    return ""


def _string(read: Callable[..., int], form: Any, annotation: Any, c: Any) -> str:
    size = read(form, annotation, None, 0)
    buffer = ctypes.create_string_buffer(size)
    read(form, annotation, ctypes.cast(buffer, ctypes.POINTER(c.FPDF_WCHAR)), size)
    return buffer.raw[: max(0, size - 2)].decode("utf-16-le", errors="replace").strip()


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
