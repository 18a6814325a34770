"""Pages: never longer than requested, nothing lost, tables under their header."""

from __future__ import annotations

import random

import pytest

from task.documents.model import PAGE_CHARS, Block, as_markdown, paginate
from tests.support.documents import manual


def test_a_manual_of_24_400_characters_has_three_pages() -> None:
    text = manual()
    pages = paginate([Block(text)])
    assert len(text) == 24_400
    assert len(pages) == 3
    assert "".join(pages) == text
    assert all(len(page) <= PAGE_CHARS for page in pages)
    assert "warm soapy water" in pages[2]


def test_five_thousand_lines_are_ten_pages_cut_at_line_ends() -> None:
    pages = paginate([Block("Sample text line. \n" * 5_000)])
    assert len(pages) == 10
    assert all(len(page) <= PAGE_CHARS and page.endswith("\n") for page in pages)


@pytest.mark.parametrize("length", [1, 9_999, 10_000, 10_001, 20_000, 20_001, 95_000])
@pytest.mark.parametrize("pattern", ["x", "word ", "a line of text\n", "long paragraph, " * 400 + "\n", "\n"])
def test_text_takes_as_few_pages_as_its_length_needs(length: int, pattern: str) -> None:
    text = (pattern * (length // len(pattern) + 1))[:length]
    pages = paginate([Block(text)])
    assert "".join(pages) == text
    assert len(pages) == -(-length // PAGE_CHARS)
    assert all(0 < len(page) <= PAGE_CHARS for page in pages)


def test_a_table_repeats_its_header_on_every_page() -> None:
    rows = [["Date", "Sale"], *([f"2025-10-{day:02}", "1" * 20] for day in range(1_000))]
    block = as_markdown(rows)
    pages = paginate([Block("**Report**: 1,000 rows"), block])
    assert len(pages) > 3
    assert pages[0].startswith("**Report**: 1,000 rows\n\n| Date | Sale |\n| --- | --- |\n| 2025-10-00 |")
    assert all(page.startswith(block.heading + "\n| 2025-10-") for page in pages[1:])
    assert all(len(page) <= PAGE_CHARS and page.endswith(" |") for page in pages)
    assert [
        line for page in pages for line in page.splitlines() if line.startswith("| 2025")
    ] == block.text.splitlines()


def test_a_row_longer_than_a_page_continues_without_the_header() -> None:
    block = as_markdown([["name", "text"], ["one", "x" * 25_000], ["two", "y"]])
    pages = paginate([block])
    assert [page.startswith(block.heading) for page in pages] == [True, False, False, True]
    assert pages[-1] == f"{block.heading}\n| two | y |"
    assert all(len(page) <= PAGE_CHARS for page in pages)


def test_no_blocks_make_no_pages() -> None:
    assert paginate([]) == ()


@pytest.mark.parametrize("seed", range(60))
def test_any_mixture_of_blocks_keeps_every_row_and_the_limit(seed: int) -> None:
    chance = random.Random(seed)
    blocks: list[Block] = []
    for number in range(chance.randint(1, 6)):
        if chance.random() < 0.5:
            blocks.append(Block(f"text{number} " + "lorem ipsum\n" * chance.randint(0, 40)))
        else:
            width = chance.randint(1, 6)
            count = chance.randint(1, 40)
            rows = [[f"t{number}r{row}" + "z" * chance.randint(0, 30)] * width for row in range(count)]
            blocks.append(as_markdown([["h" * chance.randint(1, 30)] * width, *rows]))
    pages = paginate(blocks, 300)
    assert all(0 < len(page) <= 300 for page in pages)
    joined = "".join(page.replace("\n", "") for page in pages)
    for block in blocks:
        for line in block.text.splitlines():
            assert line in joined
