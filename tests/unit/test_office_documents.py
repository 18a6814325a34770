"""Reading Word and PowerPoint files; harmful, protected or broken Office files are refused with a reason."""

import tracemalloc
import zipfile
from random import Random
from typing import Any

import pytest

from task.documents.extract import extract
from task.documents.model import Extraction, Unreadable, UnsupportedFile
from task.documents.office import MOST_PARTS
from tests.support.office import (
    COMPOUND,
    TYPES,
    add_slide,
    new_document,
    new_presentation,
    new_workbook,
    paragraph,
    saved,
    sheet_file,
    with_parts,
    word_file,
    zipped,
)

LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


def made(kind: str) -> bytes:
    """A complete file of this kind."""
    deck = new_presentation()
    add_slide(deck, 5, "text")
    document = new_document()
    document.add_paragraph("text")
    return {"docx": saved(document), "xlsx": saved(new_workbook([("text",)])[0]), "pptx": saved(deck)}[kind]


def refusal(name: str, content: bytes) -> str:
    with pytest.raises(Unreadable) as caught:
        extract(name, content)
    return str(caught.value)


@pytest.mark.fault("office: a zip bomb in DOCX, XLSX or PPTX")
@pytest.mark.parametrize("kind", TYPES)
def test_a_bomb_is_refused_before_it_is_unpacked(kind: str) -> None:
    content = with_parts(made(kind), {"word/more.xml": bytes(60 * 2**20)})
    tracemalloc.start()
    reason = refusal(f"bomb.{kind}", content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason.startswith(f"'bomb.{kind}' cannot be read: ")
    assert "would unpack to 6" in reason
    assert peak < 5 * 2**20


@pytest.mark.fault("office: a zip bomb in DOCX, XLSX or PPTX")
def test_bombs_of_parts_are_refused_or_never_opened() -> None:
    noise = Random(7).randbytes(2**20)  # does not compress, so that the file's ratio does not look suspicious
    content = with_parts(made("docx"), {"word/document.xml": bytes(65 * 2**20), "noise": noise})
    assert "is larger than 64 MiB when unpacked" in refusal("a.docx", content)

    content = with_parts(made("docx"), {f"word/{number}.xml": b"" for number in range(MOST_PARTS)})
    assert "packs 10," in refusal("many.docx", content)

    bomb = zipped({"zeros": bytes(30 * 2**20)})
    found = extract("a.docx", with_parts(made("docx"), {"word/embeddings/bomb.zip": zipped({"bomb.zip": bomb})}))
    assert found.text == "text"
    assert found.notes == ("embedded files not read: 1",)


@pytest.mark.fault("office: a merged cell with a long text")
def test_merged_cells_repeat_their_text_within_a_bound() -> None:
    cell = '<w:tc><w:tcPr><w:gridSpan w:val="100"/><w:vMerge%s/></w:tcPr>%s</w:tc>'
    rows = [cell % (' w:val="restart"', paragraph("x" * 10_000)), *[cell % ("", "")] * 10_000]
    document = word_file(f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>")
    assert 1_000_000 < len(extract("a.docx", document).text) < 5_000_000


@pytest.mark.fault("office: an XML bomb or an external entity")
@pytest.mark.parametrize("prolog", [LAUGHS, OUTSIDE], ids=["expanding", "outside"])
def test_entities_are_refused(prolog: str) -> None:
    assert "declares XML entities" in refusal("a.docx", word_file(paragraph("&a;"), prolog=prolog))
    row = "<row><c t='str'><v>&a;</v></c></row>"
    assert "declares XML entities" in refusal("a.xlsx", sheet_file(row, prolog=prolog))


@pytest.mark.fault("office: a truncated Office file")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_called_damaged(kind: str, share: float) -> None:
    content = made(kind)
    assert "it is damaged or was cut off" in refusal(f"cut.{kind}", content[: int(len(content) * share)])


@pytest.mark.fault("office: a damaged Office file")
@pytest.mark.parametrize("kind", TYPES)
def test_flipped_bytes_give_a_text_or_a_reason(kind: str) -> None:
    content = bytearray(made(kind))
    for place in range(100, len(content), 211):
        content[place] ^= 0xFF
    with pytest.raises((Unreadable, UnsupportedFile)):
        extract(f"a.{kind}", bytes(content))


def with_a_locked_zip() -> bytes:
    content = bytearray(made("docx"))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.fault("office: an Office file with a password", case="locked")
@pytest.mark.fault("office: the old binary Office format", case="old")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (COMPOUND + "EncryptedPackage".encode("utf-16-le") + bytes(1024), "protected with a password"),
        (with_a_locked_zip(), "protected with a password"),
        (COMPOUND + bytes(1024), "the old binary format"),
    ],
    ids=["locked", "locked zip", "old"],
)
@pytest.mark.parametrize("kind", TYPES)
def test_a_protected_or_old_file_is_called_so_whatever_its_name(kind: str, content: bytes, reason: str) -> None:
    assert reason in refusal(f"secret.{kind}", content)


@pytest.mark.parametrize(
    "content",
    [b"just text, no archive", zipped({"readme.txt": "hello"}), zipped({"a": "b"}, compression=zipfile.ZIP_STORED)],
    ids=["text", "zip", "stored"],
)
def test_a_file_that_is_not_an_office_file_is_not_supported(content: bytes) -> None:
    with pytest.raises(
        UnsupportedFile, match=r"'a\.docx' is not supported: this is not an Office file\. Supported are"
    ):
        extract("a.docx", content)


@pytest.mark.fault("office: a damaged Office file")
@pytest.mark.parametrize(
    ("kind", "part", "text"),
    [
        ("docx", "word/styles.xml", "text"),
        ("xlsx", "xl/styles.xml", "## Sheet: Data\n\n| text |\n| --- |"),
        ("xlsx", "xl/worksheets/sheet1.xml", "## Sheet: Data\n\n(empty)"),
        ("pptx", "ppt/slides/slide1.xml", "## Slide 1\n\n(damaged)"),
    ],
)
def test_a_damaged_part_leaves_the_others_readable(kind: str, part: str, text: str) -> None:
    found = extract(f"a.{kind}", with_parts(made(kind), {part: b"<cut"}))
    assert found.text == text
    assert found.notes == (f"damaged parts left out: {part}",)


@pytest.mark.fault("office: a damaged Office file")
def test_the_rows_before_the_damage_are_given() -> None:
    found = extract("a.xlsx", sheet_file("<row><c><v>1</v></c></row><row><c><v>2</v></c></row><row><c>"))
    assert found.blocks[1].whole == "| 1 |\n| --- |\n| 2 |"
    assert found.notes == ("damaged parts left out: xl/sheet.xml",)


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


def test_a_cells_text_is_repeated_where_it_spans_and_stays_in_its_row() -> None:
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

    document = new_document()
    cell = document.add_table(1, 2).cell(0, 0)
    cell.text = "a|b\nc"
    inner = cell.add_table(1, 2)
    inner.cell(0, 0).text, inner.cell(0, 1).text = "k", "v"
    assert read(saved(document)).text == "| a\\|b<br>c<br>k; v |  |\n| --- | --- |"


def test_notes_page_headers_and_text_boxes_are_read_once() -> None:
    document = new_document()
    document.add_paragraph("text")
    section = document.sections[0]
    section.header.paragraphs[0].text = "ACME"
    section.footer.paragraphs[0].text = "confidential"
    document.add_section().header.is_linked_to_previous = True
    assert read(saved(document)).text == "text\n\nPage header: ACME\n\nPage footer: confidential"

    box = f"<w:txbxContent>{paragraph('boxed')}</w:txbxContent>"
    alternate = (
        f"<x:AlternateContent xmlns:x='m'><x:Choice>{box}</x:Choice><x:Fallback>{box}</x:Fallback></x:AlternateContent>"
    )
    control = f"<w:sdt><w:sdtContent>{paragraph('field')}</w:sdtContent></w:sdt>"
    assert (
        read(word_file(f"<w:p><w:r><w:t>text</w:t>{alternate}</w:r></w:p>{control}")).text == "text\n\nboxed\n\nfield"
    )

    document = new_document()
    document.add_paragraph().add_run("one\ntwo\tthree")
    assert read(saved(document)).text == "one\ntwo three"


def test_footnotes_keep_their_references_and_what_is_hidden_is_left_out_and_counted() -> None:
    content = word_file(
        '<w:p><w:r><w:t>Claim</w:t></w:r><w:r><w:footnoteReference w:id="2"/></w:r></w:p>',
        {
            "footnotes": '<w:footnote w:type="separator" w:id="0"><w:p/></w:footnote>'
            f'<w:footnote w:id="2">{paragraph("Source")}</w:footnote>',
        },
    )
    assert read(content).text == "Claim[^2]\n\n[^2]: Source"

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


@pytest.mark.fault("office: macros")
@pytest.mark.fault("office: path tricks in an archive")
@pytest.mark.parametrize("name", ["a.docm", "noextension"])
def test_macros_are_not_run_and_names_that_point_outside_the_folder_are_only_names(name: str) -> None:
    parts = {"word/vbaProject.bin": b"Attribute VB_Name", "word/media/image1.png": b"png"}
    content = with_parts(made("docx"), {**parts, "../../etc/cron.d/x": b"no", "/absolute": b"no"})
    found = extract(name, content, TYPES["docx"])
    assert found.text == "text"
    assert found.notes == ("contains macros; they were not run", "pictures not read: 1")


TITLE, CONTENT, TITLE_ONLY, BLANK = 0, 1, 5, 6


def test_titles_lists_and_notes_of_every_slide() -> None:
    deck = new_presentation()
    add_slide(deck, TITLE, "Pumps", "A guide")
    slide = add_slide(deck, CONTENT, "Kinds", "Gear")
    body: Any = slide.placeholders[1]
    added = body.text_frame.add_paragraph()
    added.text, added.level = "for oil", 1
    notes: Any = slide.notes_slide.notes_text_frame
    notes.text = "Say hello"
    found = extract("deck.pptx", saved(deck))
    assert found.text == (
        "## Slide 1: Pumps\n\nA guide\n\n## Slide 2: Kinds\n\n- Gear\n  - for oil\n\nNotes: Say hello"
    )
    assert [block.page for block in found.blocks] == [1, 2]


def test_tables_with_merged_cells_groups_and_text_boxes() -> None:
    from pptx.util import Inches

    deck = new_presentation()
    slide = add_slide(deck, TITLE_ONLY, "Numbers")
    place = Inches(1), Inches(1), Inches(4), Inches(2)
    table = slide.shapes.add_table(3, 2, *place).table
    for row, texts in enumerate((("Year", "Flow"), ("2025", "10"), ("", "11"))):
        for column, text in enumerate(texts):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(*place).text_frame.text = "in a group\vsecond line"
    assert extract("deck.pptx", saved(deck)).text == (
        "## Slide 1: Numbers\n\n| Year | Flow |\n| --- | --- |\n| 2025 | 10 |\n| 2025 | 11 |\n\nin a group\nsecond line"
    )


@pytest.mark.fault("office: macros")
def test_hidden_slides_and_macros_are_named() -> None:
    deck = new_presentation()
    add_slide(deck, BLANK)
    slide: Any = add_slide(deck, TITLE_ONLY, "Backup")
    slide.element.set("show", "0")
    found = extract("deck.pptx", saved(deck))
    assert found.text == "## Slide 1\n\n## Slide 2 (hidden): Backup"
    assert found.notes == ("hidden slides: 2",)

    content = with_parts(made("pptx"), {"ppt/vbaProject.bin": b"x", "ppt/embeddings/sheet1.xlsx": b"PK"})
    found = extract("deck.pptm", content)
    assert found.text == "## Slide 1: text"
    assert found.notes == ("contains macros; they were not run", "embedded files not read: 1")
