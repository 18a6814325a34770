"""Scanned pages read by Tesseract."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from task.documents.pdf import Ocr, read_pdf
from task.documents.pool import ReaderPool
from tests.support import pdfs

WORDS = "Clean the glass tray\nin warm soapy water.\nInvoice 4711"


@pytest.mark.fault("pdf: a scanned PDF")
@pytest.mark.system
async def test_a_scanned_page_is_read_by_a_reader_process_and_named_in_the_report() -> None:
    readers = ReaderPool()
    try:
        found = await readers.extraction("scan.pdf", pdfs.drawn(pdfs.lines(["Typed text"]), pdfs.scan(WORDS)))
    finally:
        await readers.close()
    assert found.text == f"[Page 1]\n\nTyped text\n\n[Page 2]\n\n{WORDS}"
    assert found.notes == ("2 pages", "read by OCR, mistakes are likely: page 2")


def tesseract_of(folder: Path, script: str) -> Ocr:
    """A program that replaces Tesseract."""
    program = folder / "tesseract"
    program.write_text(f"#!/bin/sh\n[ $1 = --list-langs ] && printf 'List:\\neng\\nosd\\n' && exit\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Ocr(pages=2, seconds=1, command=str(program))


@pytest.mark.fault("pdf: a scanned PDF")
def test_pages_beyond_the_limit_of_ocr_are_named(tmp_path: Path) -> None:
    found = read_pdf(pdfs.drawn(*[pdfs.scan("x")] * 4), ocr=tesseract_of(tmp_path, "cat > /dev/null; echo Read $4"))
    assert found.text == "[Page 1]\n\nRead eng\n\n[Page 2]\n\nRead eng"
    assert found.notes == (
        "4 pages",
        "read by OCR, mistakes are likely: pages 1-2",
        "without text, scanned or drawn: pages 3-4 (OCR found nothing or had reached its limit)",
    )


@pytest.mark.fault("pdf: a scanned PDF")
@pytest.mark.parametrize("script", ["exit 1", "exec sleep 30", "cat > /dev/null"], ids=["fails", "hangs", "nothing"])
def test_an_ocr_that_fails_leaves_the_page_without_text(tmp_path: Path, script: str) -> None:
    found = read_pdf(pdfs.drawn(pdfs.scan("x"), pdfs.lines(["Typed"])), ocr=tesseract_of(tmp_path, script))
    assert found.text == "[Page 2]\n\nTyped"
    assert found.notes == (
        "2 pages",
        "without text, scanned or drawn: page 1 (OCR found nothing or had reached its limit)",
    )
