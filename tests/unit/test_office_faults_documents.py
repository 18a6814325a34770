"""Office files that are made to do harm, protected or broken are refused with a reason, whatever their name."""

from __future__ import annotations

import tracemalloc
import zipfile

import pytest

from task.documents.extract import extract
from task.documents.model import Unreadable, UnsupportedFile
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
def test_a_part_that_would_fill_the_memory_is_refused() -> None:
    content = with_parts(made("docx"), {"word/document.xml": bytes(65 * 2**20), "noise": noise()})
    assert "is larger than 64 MiB when unpacked" in refusal("a.docx", content)


def noise() -> bytes:
    """Bytes that do not compress, so that the file's ratio does not look suspicious."""
    from random import Random

    return Random(7).randbytes(2**20)


@pytest.mark.fault("office: a zip bomb in DOCX, XLSX or PPTX")
def test_too_many_parts_are_refused() -> None:
    content = with_parts(made("docx"), {f"word/{number}.xml": b"" for number in range(MOST_PARTS)})
    assert "packs 10," in refusal("many.docx", content)


@pytest.mark.fault("office: a zip bomb in DOCX, XLSX or PPTX")
def test_a_bomb_inside_a_document_is_never_opened() -> None:
    bomb = zipped({"zeros": bytes(30 * 2**20)})
    found = extract("a.docx", with_parts(made("docx"), {"word/embeddings/bomb.zip": zipped({"bomb.zip": bomb})}))
    assert found.text == "text"
    assert found.notes == ("embedded files not read: 1",)


@pytest.mark.fault("office: an XML bomb or an external entity")
@pytest.mark.parametrize("prolog", [LAUGHS, OUTSIDE], ids=["expanding", "outside"])
def test_entities_are_refused(prolog: str) -> None:
    assert "declares XML entities" in refusal("a.docx", word_file(paragraph("&a;"), prolog=prolog))
    row = "<row><c t='str'><v>&a;</v></c></row>"
    assert "declares XML entities" in refusal("a.xlsx", sheet_file(row, prolog=prolog))


@pytest.mark.fault("office: path tricks in an archive")
def test_names_that_point_outside_the_folder_are_only_names() -> None:
    found = extract("a.docx", with_parts(made("docx"), {"../../etc/cron.d/x": b"no", "/absolute": b"no"}))
    assert found.text == "text"


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
