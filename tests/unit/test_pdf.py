"""Reading PDFs: text in reading order, ruled tables, forms, scans, and what is left of damaged files."""

import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from reportlab.platypus import Flowable

from task.documents.extract import extract
from task.documents.model import Extraction, Unreadable, UnsupportedFile
from task.documents.pdf import MAX_PAGES, Ocr, read_pdf
from task.documents.pool import ReaderPool
from task.errors import ToolError
from tests.support import pdfs
from tests.support.documents import SALES

NO_OCR = Ocr(command=None)


def cells_of(found: Extraction) -> list[list[str]]:
    """The cells of every Markdown table, row by row."""
    lines = [line for block in found.blocks if block.heading for line in block.whole.split("\n")]
    return [line[2:-2].split(" | ") for line in lines if not line.startswith("| ---")]


def test_pages_come_in_order_each_under_its_number_whatever_the_files_name() -> None:
    found = extract("a.pdf", pdfs.text_pdf(3, 2))
    assert found.notes == ("3 pages",)
    assert [block.page for block in found.blocks] == [1, 1, 2, 2, 3, 3]
    assert found.text.startswith("[Page 1]\n\nPage 1 begins here.\nLine 0 of a page that is filled with words")
    assert "[Page 3]\n\nPage 3 begins here.\n" in found.text

    assert "Page 1 begins here." in extract("letter.txt", pdfs.text_pdf(1)).text


WIDE = [[f"r{row} c{column}" for column in range(9)] for row in range(60)]
WITH_GAPS = [["", "North", "South"], ["2024", "", "5"], ["2025", "7", ""], ["", "", "9"]]


@pytest.mark.fault("pdf: rotated text", case="turned")
@pytest.mark.parametrize(
    ("rows", "content"),
    [
        (SALES, pdfs.flowing_pdf(pdfs.ruled(SALES))),
        (SALES, pdfs.drawn(pdfs.boxed(SALES))),
        (SALES, pdfs.drawn(pdfs.turned(pdfs.boxed(SALES)))),
        (WIDE, pdfs.flowing_pdf(pdfs.ruled(WIDE))),
        (WITH_GAPS, pdfs.flowing_pdf(pdfs.ruled(WITH_GAPS))),
    ],
    ids=["ruled", "boxed", "turned", "over-two-pages", "empty-cells"],
)
def test_a_ruled_table_keeps_its_cells(rows: Sequence[Sequence[str]], content: bytes) -> None:
    places = zip(rows, cells_of(read_pdf(content)), strict=False)
    same = sum(one == other for row, read in places for one, other in zip(row, read, strict=False))
    assert same / sum(map(len, rows)) >= 0.95


def test_words_stay_in_their_cells_and_boxes_around_text_are_not_tables() -> None:
    rows = [["Region", "", "Sum"], ["a | b", "one line\nand another", "3"], ["c", "d", "4"]]
    found = read_pdf(pdfs.flowing_pdf(pdfs.ruled(rows, ("SPAN", (0, 0), (1, 0)))))
    assert found.text == (
        "| Region |  | Sum |\n| --- | --- | --- |\n| a \\| b | one line and another | 3 |\n| c | d | 4 |"
    )

    found = extract("a.pdf", pdfs.drawn(pdfs.boxed([["0123456789" * 3, "", ""], ["a", "b", "c"]])))
    first, _ = cells_of(found)
    assert "".join(first) == "0123456789" * 3
    assert all(first)

    found = read_pdf(pdfs.drawn(pdfs.boxed([["A note in a box"], ["A second box under it"]], width=200)))
    assert found.text == "A note in a box\nA second box under it"


def test_text_before_between_and_after_tables_keeps_its_place() -> None:
    parts: list[Flowable] = []
    for word in ("before", "between", "after"):
        parts += [pdfs.paragraph(f"Text {word}."), pdfs.ruled([["a", word], ["1", "2"]])]
    text = read_pdf(pdfs.flowing_pdf(*parts[:-1])).text
    places = [text.index(piece) for piece in ("Text before.", "| a | before |", "Text between.", "| a | between |")]
    assert places == sorted(places)
    assert text.endswith("Text after.")


@pytest.mark.fault("pdf: columns")
def test_columns_drawn_line_by_line_are_read_one_after_the_other() -> None:
    expected = "\n".join([pdfs.TITLE, *pdfs.LEFT, *pdfs.RIGHT])
    assert read_pdf(pdfs.drawn(pdfs.columns(line_by_line=False))).text == expected
    assert read_pdf(pdfs.drawn(pdfs.columns(line_by_line=True))).text == expected
    assert read_pdf(pdfs.drawn(pdfs.turned(pdfs.columns(line_by_line=True)))).text == expected


@pytest.mark.fault("pdf: columns")
def test_a_table_without_lines_is_read_row_by_row() -> None:
    rows = [pdfs.lines([date], x=50, top=800 - 14 * row) for row, (date, *_) in enumerate(SALES)]
    sums = [pdfs.lines([sales], x=300, top=800 - 14 * row) for row, (_, _, sales, _) in enumerate(SALES)]

    def row_by_row(canvas: object) -> None:
        for left, right in zip(rows, sums, strict=True):
            left(canvas)
            right(canvas)

    assert "2025-10-05 1700\n2025-10-05 1200" in read_pdf(pdfs.drawn(row_by_row)).text


@pytest.mark.fault("pdf: rotated text")
@pytest.mark.fault("pdf: Chinese, Japanese and Korean")
@pytest.mark.fault("pdf: right-to-left text")
def test_text_of_any_direction_and_script_is_read_in_its_order() -> None:
    text = read_pdf(pdfs.drawn(pdfs.sideways)).text
    for sentence in (
        "An upright sentence.",
        "A sentence going up.",
        "A sentence upside down.",
        "A sentence going down.",
    ):
        assert sentence in text

    assert read_pdf(pdfs.drawn(pdfs.cjk)).text == f"{pdfs.CHINESE}\n{pdfs.JAPANESE}\n{pdfs.KOREAN}"

    assert read_pdf(pdfs.right_to_left_pdf()).text == pdfs.HEBREW

    assert read_pdf(pdfs.drawn(pdfs.lines(["Clean the micro-", "wave with Smith-", "Jones soap."]))).text == (
        "Clean the microwave with Smith-Jones soap."
    )


@pytest.mark.fault("pdf: a PDF with a form")
def test_a_form_gives_its_fields_with_their_values() -> None:
    found = read_pdf(pdfs.drawn(pdfs.form))
    assert found.notes == ("1 page", "form fields: 6")
    assert found.text == (
        "Order form\n\nForm fields:\n- full_name (Your name): Ann Example\n- remark: (empty)\n- newsletter: checked\n"
        "- express: not checked\n- colour: red\n- size: large"
    )


@pytest.mark.fault("pdf: a scanned PDF")
def test_scanned_and_blank_pages_and_those_that_can_only_be_seen_are_named_with_advice() -> None:
    content = pdfs.drawn(pdfs.lines(["Text"]), pdfs.scan("Seen"), pdfs.scan("Seen"), pdfs.blank, pdfs.scan("Seen"))
    found = read_pdf(content, ocr=NO_OCR)
    assert found.text == "[Page 1]\n\nText"
    assert found.notes == (
        "5 pages",
        "without text, scanned or drawn: pages 2-3, 5 "
        "(install Tesseract, the Debian package tesseract-ocr, to have them read)",
        "without text, blank: page 4",
    )

    def numbered(canvas: object) -> None:
        pdfs.scan("Seen")(canvas)
        pdfs.lines(["- 1 -"], top=20)(canvas)

    found = read_pdf(pdfs.drawn(numbered), ocr=NO_OCR)
    assert found.text == "- 1 -"
    assert "scanned or drawn: page 1" in found.notes[1]

    def curves(canvas: object) -> None:
        for number in range(30):
            pdfs.curve(canvas, 50 + 12 * number, 700)

    found = read_pdf(pdfs.drawn(curves), ocr=NO_OCR)
    assert found.notes[1].startswith("without text, scanned or drawn: page 1 ")


@pytest.mark.fault("pdf: a PDF whose letters have no meaning")
def test_letters_without_a_meaning_are_not_returned_as_text() -> None:
    found = read_pdf(pdfs.remapped_pdf("nothing to be told", 0xE000), ocr=NO_OCR)
    assert found.is_empty
    assert found.notes[1] == "without readable text, its letters cannot be identified: page 1"


@pytest.mark.fault("pdf: a PDF of 2,000 pages")
def test_a_pdf_of_very_many_pages_is_read_completely_up_to_the_limit() -> None:
    found = read_pdf(pdfs.many_pages_pdf(2_000))
    assert found.notes == ("2,000 pages",)
    assert sum(block.text == "The same words" for block in found.blocks) == 2_000

    found = read_pdf(pdfs.many_pages_pdf(MAX_PAGES + 1, b""))
    assert found.notes[:2] == ("5,001 pages", "cut off: only pages 1-5,000 were read")


@pytest.mark.fault("pdf: a drawing of thousands of lines")
def test_lines_that_cross_too_often_are_a_drawing_and_the_text_is_still_read() -> None:
    found = read_pdf(pdfs.many_pages_pdf(1, pdfs.grid(80, 80, size=7)))
    assert found.notes == ("1 page", "tables given as plain text: page 1")
    assert found.text.count("x") == 6_400


TWENTY = pdfs.text_pdf(20)


@pytest.mark.fault("pdf: an encrypted PDF")
@pytest.mark.parametrize("strength", [40, 128])
def test_a_password_is_asked_for_with_the_files_name_and_an_empty_one_opens_it(strength: int) -> None:
    with pytest.raises(Unreadable, match=r"'pay\.pdf' cannot be read: it is encrypted and needs a password"):
        extract("pay.pdf", pdfs.encrypted_pdf("Secret", "secret", strength))

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
    assert share > 0.5 or found.notes[-1].startswith("without text, lost or blank: pages ")


@pytest.mark.fault("pdf: a damaged PDF")
def test_damage_inside_a_file_costs_its_own_page_only() -> None:
    assert "Page 20 begins here." in read_pdf(TWENTY.replace(b"startxref\n", b"startxref\n9")).text

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


@pytest.mark.fault("pdf: a truncated PDF")
def test_compressed_pages_of_a_truncated_file_are_recovered() -> None:
    found = read_pdf(pdfs.packed_pdf("Packed words"))
    assert found.text == "Packed words"
    assert "could be recovered" in found.notes[1]
