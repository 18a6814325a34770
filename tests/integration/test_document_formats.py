"""Documents of every kind, attached to a chat: the model gets their text, or the reason why there is none."""

from pathlib import Path

import pytest

from task.llm.scripted import says
from tests.support.document_turns import reads_the_file
from tests.support.html_pages import SCENARIO_7
from tests.support.office import COMPOUND, TYPES, new_document, saved, with_parts, zipped
from tests.support.product import Product, product

MACRO = {"word/vbaProject.bin": b"Sub AutoOpen()"}
WITH_MACROS = "application/vnd.ms-word.document.macroEnabled.12"


def letter() -> bytes:
    document = new_document()
    document.add_heading("Offer", 1)
    document.add_paragraph("The price is 12.")
    return saved(document)


async def extraction(p: Product, name: str, content: bytes, content_type: str) -> tuple[str, str]:
    """The tool message and the stage content for an attached file."""
    file = await p.reader.upload(name, content, content_type)
    answer = await p.reader.ask("What is in this file?", file)
    return p.upstream.requests[-1].messages[-1]["content"], answer.stages[0].content


@pytest.mark.usefixtures("chat")
async def test_07_a_page_of_html_gives_its_text_and_no_script(tmp_path: Path) -> None:
    async with product(reads_the_file, says("A heading and a paragraph."), tmp_path=tmp_path) as p:
        text, stage = await extraction(p, "test.html", SCENARIO_7.encode(), "text/html")
    assert text == "# Test Document\n\nThis is a paragraph with bold text."
    assert text in stage
    assert "alert(" not in "".join(str(request.body) for request in p.upstream.requests)


async def test_files_are_read_under_every_type_that_browsers_report(tmp_path: Path) -> None:
    files = [
        ("notes.md", b"# Plan", "text/markdown", "# Plan"),
        ("notes.md", b"# Plan", "text/x-markdown", "# Plan"),
        ("sales.csv", b"Year;Sales\n2025;7350", "application/vnd.ms-excel", "| 2025 | 7350 |"),
        ("sales.tsv", b"Year\tSales\n2025\t7350", "text/tab-separated-values", "| 2025 | 7350 |"),
        ("rates.json", b'{"rate": 7}', "application/json", '"rate": 7'),
        ("offer.docx", letter(), TYPES["docx"], "# Offer\n\nThe price is 12."),
        ("offer.docm", with_parts(letter(), MACRO), WITH_MACROS, "**Report**: contains macros; they were not run"),
    ]
    async with product(*[reads_the_file, says("That.")] * len(files), tmp_path=tmp_path) as p:
        for name, content, content_type, expected in files:
            text, stage = await extraction(p, name, content, content_type)
            assert expected in text
            assert text in stage


@pytest.mark.fault("office: a zip bomb in DOCX, XLSX or PPTX")
async def test_a_file_without_content_is_explained_and_the_chat_continues(tmp_path: Path) -> None:
    files = {
        "would unpack to": with_parts(letter(), {"word/zeros": bytes(60 * 2**20)}),
        "protected with a password": COMPOUND + "EncryptedPackage".encode("utf-16-le") + bytes(1024),
        "damaged or was cut off": letter()[:5000],
        "not an Office file": zipped({"readme.txt": "hello"}),
    }
    async with product(*[reads_the_file, says("I cannot read it.")] * len(files), tmp_path=tmp_path) as p:
        for number, (reason, content) in enumerate(files.items()):
            file = await p.reader.upload(f"offer{number}.docx", content, TYPES["docx"])
            answer = await p.reader.ask("Read this", file)
            assert reason in p.upstream.requests[-1].messages[-1]["content"]
            assert (answer.status, answer.content, answer.stages[0].status) == (200, "I cannot read it.", "failed")
