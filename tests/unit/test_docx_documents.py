"""Reading Word documents: headings, lists and tables as Word shows them, and nothing that was deleted or hidden."""

from __future__ import annotations

import pytest

from task.documents.extract import extract
from task.documents.model import Extraction
from tests.support.office import TYPES, new_document, paragraph, saved, with_parts, word_file


def read(content: bytes) -> Extraction:
    return extract("a.docx", content)


def test_headings_paragraphs_and_lists_in_reading_order() -> None:
    document = new_document()
    document.add_heading("Pumps", 0)
    document.add_heading("Kinds", 2)
    document.add_paragraph("Two kinds are ").add_run("in use").bold = True
    for text, style in (("gear", "List Bullet"), ("oil", "List Bullet 2"), ("vane", "List Bullet")):
        document.add_paragraph(text, style=style)
    for text in ("open", "start"):
        document.add_paragraph(text, style="List Number")
    assert read(saved(document)).text == (
        "# Pumps\n\n## Kinds\n\nTwo kinds are in use\n\n- gear\n  - oil\n- vane\n1. open\n2. start"
    )


def test_merged_cells_repeat_their_text() -> None:
    document = new_document()
    table = document.add_table(3, 3)
    for row in range(3):
        for column in range(3):
            table.cell(row, column).text = f"{row}{column}"
    for cell, other, text in (
        (table.cell(0, 0), table.cell(0, 1), "both"),
        (table.cell(1, 2), table.cell(2, 2), "tall"),
    ):
        cell.merge(other).text = text
    found = read(saved(document))
    assert found.blocks[-1].heading == "| both | both | 02 |\n| --- | --- | --- |"
    assert found.blocks[-1].text == "| 10 | 11 | tall |\n| 20 | 21 | tall |"


def test_a_table_in_a_cell_and_line_ends_stay_in_their_row() -> None:
    document = new_document()
    cell = document.add_table(1, 2).cell(0, 0)
    cell.text = "a|b\nc"
    inner = cell.add_table(1, 2)
    inner.cell(0, 0).text, inner.cell(0, 1).text = "k", "v"
    assert read(saved(document)).text == "| a\\|b<br>c<br>k; v |  |\n| --- | --- |"


def test_page_headers_and_footers_appear_once_at_the_end() -> None:
    document = new_document()
    document.add_paragraph("text")
    section = document.sections[0]
    section.header.paragraphs[0].text = "ACME"
    section.footer.paragraphs[0].text = "confidential"
    document.add_section().header.is_linked_to_previous = True
    assert read(saved(document)).text == "text\n\nPage header: ACME\n\nPage footer: confidential"


def test_footnotes_keep_their_references() -> None:
    content = word_file(
        '<w:p><w:r><w:t>Claim</w:t></w:r><w:r><w:footnoteReference w:id="2"/></w:r></w:p>',
        {
            "footnotes": '<w:footnote w:type="separator" w:id="0"><w:p/></w:footnote>'
            f'<w:footnote w:id="2">{paragraph("Source")}</w:footnote>',
        },
    )
    assert read(content).text == "Claim[^2]\n\n[^2]: Source"


def test_tracked_deletions_hidden_text_and_comments_are_left_out_and_counted() -> None:
    content = word_file(
        "<w:p><w:r><w:t xml:space='preserve'>The price is </w:t></w:r>"
        "<w:del w:id='1'><w:r><w:delText>10</w:delText></w:r></w:del><w:ins w:id='2'><w:r><w:t>12</w:t></w:r></w:ins>"
        "<w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r></w:p>",
        {"comments": f'<w:comment w:id="1">{paragraph("why?")}</w:comment>'},
    )
    found = read(content)
    assert found.text == "The price is 12"
    assert found.notes == ("tracked deletions left out: 1", "comments left out: 1")


def test_list_numbers_look_as_they_do_in_word() -> None:
    def level(depth: int, shape: str, text: str, start: int = 1) -> str:
        return (
            f'<w:lvl w:ilvl="{depth}"><w:start w:val="{start}"/><w:numFmt w:val="{shape}"/><w:lvlText w:val="{text}"/>'
            "</w:lvl>"
        )

    def entry(text: str, depth: int) -> str:
        number = f'<w:pPr><w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="7"/></w:numPr></w:pPr>'
        return paragraph(text).replace("<w:p>", f"<w:p>{number}")

    numbering = (
        f'<w:abstractNum w:abstractNumId="1">{level(0, "decimal", "%1.", 3)}{level(1, "lowerLetter", "%1.%2)")}'
        f'{level(2, "upperRoman", "%3")}</w:abstractNum><w:num w:numId="7"><w:abstractNumId w:val="1"/></w:num>'
    )
    body = "".join(entry(text, depth) for text, depth in (("a", 0), ("b", 1), ("c", 1), ("d", 2), ("e", 0), ("f", 1)))
    assert read(word_file(body, {"numbering": numbering})).text == ("3. a\n  3.a) b\n  3.b) c\n    I d\n4. e\n  4.a) f")


def test_a_text_box_is_read_once_and_content_controls_are_read() -> None:
    box = f"<w:txbxContent>{paragraph('boxed')}</w:txbxContent>"
    alternate = (
        f"<x:AlternateContent xmlns:x='m'><x:Choice>{box}</x:Choice><x:Fallback>{box}</x:Fallback></x:AlternateContent>"
    )
    control = f"<w:sdt><w:sdtContent>{paragraph('field')}</w:sdtContent></w:sdt>"
    assert (
        read(word_file(f"<w:p><w:r><w:t>text</w:t>{alternate}</w:r></w:p>{control}")).text == "text\n\nboxed\n\nfield"
    )


def test_breaks_tabs_and_links() -> None:
    document = new_document()
    written = document.add_paragraph()
    written.add_run("one\ntwo\tthree")
    content = saved(document)
    assert read(content).text == "one\ntwo three"


@pytest.mark.fault("office: macros")
@pytest.mark.parametrize("name", ["a.docm", "noextension"])
def test_a_document_with_macros_is_read_without_them(name: str) -> None:
    document = new_document()
    document.add_paragraph("text")
    content = with_parts(
        saved(document), {"word/vbaProject.bin": b"Attribute VB_Name", "word/media/image1.png": b"png"}
    )
    found = extract(name, content, TYPES["docx"])
    assert found.text == "text"
    assert found.notes == ("contains macros; they were not run", "pictures not read: 1")


def test_a_document_without_text_is_empty() -> None:
    assert read(saved(new_document())).is_empty
