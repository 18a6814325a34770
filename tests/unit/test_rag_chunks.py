"""Chunks know their place, tables keep their header, and every text is cut in bounded time."""

from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task.documents.extract import extract
from task.documents.model import Block
from task.search.chunks import CHUNK_CHARS, ChunkedDocument, chunk_document
from tests.support.documents import SALES, csv_bytes


def chunked(text: str, name: str = "notes.txt") -> ChunkedDocument:
    return chunk_document(name, extract(name, text.encode()).blocks)


def paragraphs(count: int, words: str = "The door seal is checked every spring. ") -> str:
    return "\n\n".join(f"Paragraph {number}. {words * 6}" for number in range(count))


def test_a_chunks_span_is_its_position_and_neighbours_share_characters() -> None:
    document = chunked(paragraphs(20))
    for chunk in document.chunks:
        assert document.text[chunk.place.start : chunk.place.end] == chunk

    document = chunked("word " * 400)
    first, second = document.chunks[:2]
    assert 0 < first.place.end - second.place.start <= 50


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet=st.sampled_from("ab. \n|#-1é漢"), max_size=3000))
def test_every_word_is_in_a_chunk_whatever_the_text(text: str) -> None:
    document = chunk_document("any.txt", [Block(text)])
    covered = {place for chunk in document.chunks for place in range(chunk.place.start, chunk.place.end)}
    lines = {
        number for number, letter in enumerate(document.text) if letter.isalnum() and not _in_header(document, number)
    }
    assert lines <= covered
    assert all(len(chunk) <= max(CHUNK_CHARS, len(chunk.place.header) * 2) for chunk in document.chunks)


def _in_header(document: ChunkedDocument, place: int) -> bool:
    heads = [chunk.place.header for chunk in document.chunks if chunk.place.header]
    return any(head in document.text[max(0, place - len(head)) : place + len(head)] for head in heads)


def test_headings_lead_to_the_chunks_below_them() -> None:
    text = "# Manual\n\n## 3. Cleaning\n\nWash the tray.\n\n### Stains\n\nUse soda.\n\n## 4. Repairs\n\nCall us."
    headings = {str(chunk).splitlines()[-1]: chunk.place.headings for chunk in chunked(text, "m.md").chunks}
    assert headings["Wash the tray."] == ("Manual", "3. Cleaning")
    assert headings["Use soda."] == ("Manual", "3. Cleaning", "Stains")
    assert headings["Call us."] == ("Manual", "4. Repairs")

    [chunk] = chunked("# Setup\n\n```\n# not a heading\nrun\n```\n", "m.md").chunks
    assert chunk.place.headings == ("Setup",)

    [chunk] = chunked("# Cleaning\n\n## Tray\n\nWash it.", "m.md").chunks
    assert chunk.indexed().startswith("Cleaning > Tray\n")
    assert chunk.indexed("m.md").startswith("m.md > Cleaning > Tray\n")

    text = (
        "OWNER'S MANUAL\n\n1. Safety\nKeep children away.\n\nDo this:\n\n1. Open the door\n2. Close the door\n\n"
        "2.1 Child lock\nHold the key.\n"
    )
    paths = [chunk.place.headings for chunk in chunked(text).chunks]
    assert paths[0] == ("OWNER'S MANUAL", "1. Safety")
    assert ("OWNER'S MANUAL", "1. Safety", "2.1 Child lock") in paths
    assert not any("1. Open the door" in path for path in paths)


def test_rows_of_a_table_carry_its_header_and_their_numbers() -> None:
    rows = [*SALES, *(SALES[1:] * 10)]
    document = chunk_document("report.csv", extract("report.csv", csv_bytes(rows)).blocks)
    assert len(document.chunks) > 3
    assert all(chunk.startswith("| Date | Category | Sales | Profit |\n| --- |") for chunk in document.chunks)
    assert all(len(chunk) <= CHUNK_CHARS for chunk in document.chunks)
    spans = [chunk.place.rows for chunk in document.chunks]
    assert spans[0] is not None
    assert (spans[0][0], spans[-1] and spans[-1][1]) == (1, 110)


def test_a_table_inside_a_text_is_a_table() -> None:
    body = "\n".join(f"| {number} | part {number} of the oven |" for number in range(60))
    document = chunked(f"# Parts\n\nAll parts:\n\n| No | Name |\n|---|---|\n{body}\n\nThe end.", "m.md")
    tables = [chunk for chunk in document.chunks if chunk.place.header]
    assert len(tables) > 2
    assert all(chunk.startswith("| No | Name |\n|---|---|\n") for chunk in tables)
    assert document.chunks[-1] == "The end."


def test_a_row_too_wide_for_a_chunk_is_split_by_cells_with_their_columns() -> None:
    names = [f"column {number}" for number in range(1000)]
    document = chunk_document("w.csv", extract("w.csv", csv_bytes([names, [f"v{n}" for n in range(1000)]])).blocks)
    assert any("column 771: v771" in chunk.splitlines() for chunk in document.chunks)
    assert all(len(chunk) <= CHUNK_CHARS for chunk in document.chunks)


def test_a_chunk_stays_on_its_page_and_the_pages_number_is_none() -> None:
    blocks = [Block(f"Page {page} speaks of subject {page}. " * 9, page=page) for page in (1, 2, 3)]
    pages = {chunk.place.page: str(chunk) for chunk in chunk_document("a.pdf", blocks).chunks}
    assert set(pages) == {1, 2, 3}
    assert all(f"Page {page} " in text for page, text in pages.items())

    blocks = [Block("[Page 1]", page=1), Block("Wash the tray.", page=1), Block("[Page 2]", page=2)]
    document = chunk_document("a.pdf", blocks)
    assert [str(chunk) for chunk in document.chunks] == ["Wash the tray."]
    assert document.text[document.chunks[0].place.start :].startswith("Wash the tray.")


@pytest.mark.fault("search in documents: an empty document")
def test_a_document_without_text_has_no_chunks() -> None:
    assert chunk_document("empty.txt", ()).chunks == ()
    assert chunk_document("blank.txt", [Block(" \n\n ")]).chunks == ()


@pytest.mark.fault("search in documents: one line of 5 MB")
def test_one_line_of_5_mb_is_cut_in_seconds_with_or_without_blanks() -> None:
    started = process_time()
    for text in ("lorem ipsum dolor " * 290_000, "x" * 5_000_000):
        document = chunked(text)
        assert max(map(len, document.chunks)) <= CHUNK_CHARS
        assert document.chunks[-1].place.end >= len(text) - 1
    assert process_time() - started < 15
