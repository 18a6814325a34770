"""Reader of PDF: text, ruled tables, form fields and scanned pages, whatever state the file is in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from task.documents.model import Block, Extraction, NotText, Unreadable
from task.documents.ocr import Ocr
from task.documents.pdf_forms import fields_of
from task.documents.pdf_notes import Findings
from task.documents.pdf_page import PageContent, read_page
from task.documents.pdf_salvage import salvaged

MAX_PAGES = 5_000
MAX_CHARS = 20_000_000
TABLE_SECONDS = 20.0
READ_SECONDS = 45.0
_LOCKS = (4, 5)  # pdfium's codes for a missing password and for a lock it does not know
_DYNAMIC_FORM = 2  # pdfium's number for a form whose pages are made by a program within it
_PADDING = b"\0\r\n\t "


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
