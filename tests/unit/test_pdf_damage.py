"""PDFs that are locked, truncated or broken: named, and what is left of them is read."""

from __future__ import annotations

from contextlib import suppress

import pytest

from task.documents.extract import extract
from task.documents.model import Unreadable, UnsupportedFile
from task.documents.pdf import read_pdf
from task.errors import ToolError
from tests.support import pdfs

TWENTY = pdfs.text_pdf(20)


@pytest.mark.fault("pdf: an encrypted PDF")
@pytest.mark.parametrize("strength", [40, 128])
def test_a_password_is_asked_for_and_the_file_named(strength: int) -> None:
    with pytest.raises(Unreadable, match=r"'pay\.pdf' cannot be read: it is encrypted and needs a password"):
        extract("pay.pdf", pdfs.encrypted_pdf("Secret", "secret", strength))


@pytest.mark.fault("pdf: an encrypted PDF")
@pytest.mark.parametrize("strength", [40, 128])
def test_an_empty_password_opens_the_file(strength: int) -> None:
    found = read_pdf(pdfs.encrypted_pdf("For everybody", "", strength))
    assert found.text == "For everybody"
    assert found.notes == ("1 page", "encrypted, opened without a password")


@pytest.mark.fault("pdf: a truncated PDF")
@pytest.mark.parametrize("share", [0.99, 0.8, 0.5])
def test_a_truncated_file_gives_the_pages_that_are_left(share: float) -> None:
    found = read_pdf(TWENTY[: int(len(TWENTY) * share)])
    left = sum(f"Page {number} begins here." in found.text for number in range(1, 21))
    assert left >= int(20 * share) - 4  # what all pages share comes first
    assert "the file is damaged or cut off: these are the pages that could be recovered" in found.notes


@pytest.mark.fault("pdf: a truncated PDF")
def test_pages_that_are_lost_are_named() -> None:
    assert read_pdf(TWENTY[: len(TWENTY) // 2]).notes[-1].startswith("without text, lost or blank: pages ")


@pytest.mark.fault("pdf: a truncated PDF")
def test_compressed_pages_of_a_truncated_file_are_recovered() -> None:
    found = read_pdf(pdfs.packed_pdf("Packed words"))
    assert found.text == "Packed words"
    assert "could be recovered" in found.notes[1]


@pytest.mark.fault("pdf: a damaged PDF")
def test_a_wrong_cross_reference_table_does_no_harm() -> None:
    moved = TWENTY.replace(b"startxref\n", b"startxref\n9")
    assert "Page 20 begins here." in read_pdf(moved).text


@pytest.mark.fault("pdf: a damaged PDF")
def test_a_page_of_zeros_costs_that_page() -> None:
    middle = len(TWENTY) // 2
    found = read_pdf(TWENTY[:middle] + bytes(300) + TWENTY[middle + 300 :])
    assert sum(f"Page {number} begins here." in found.text for number in range(1, 21)) >= 18


@pytest.mark.fault("pdf: a damaged PDF")
@pytest.mark.parametrize("content", [b"%PDF-1.7\nnothing of a PDF", b"%PDF-1.4\n1 0 obj\n<</Type/Catalog>>\nendobj"])
def test_a_file_with_no_page_left_is_called_damaged(content: bytes) -> None:
    with pytest.raises(Unreadable, match=r"'a\.pdf' cannot be read: it is damaged and no page of it is left"):
        extract("a.pdf", content)


@pytest.mark.fault("pdf: another file under the name of a PDF")
def test_another_file_under_the_name_of_a_pdf_is_not_supported() -> None:
    with pytest.raises(UnsupportedFile, match=r"'a\.pdf' is not supported: this is not a PDF"):
        extract("a.pdf", b"<html><body>Not found</body></html>")


@pytest.mark.fault("pdf: a damaged PDF")
@pytest.mark.parametrize("seed", range(12))
def test_any_damage_gives_text_or_a_reason(seed: int) -> None:
    content = bytearray(TWENTY)
    for step in range(200):
        content[(seed * 7919 + step * 104_729) % len(content)] = (seed + step * 31) % 256
    with suppress(ToolError):
        assert read_pdf(bytes(content)).notes
