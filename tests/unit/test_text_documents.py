"""Reading text and JSON: which reader, which encoding, which notes; and how documents are cut into pages."""

import json
import random

import pytest

from task.documents.extract import READERS, SUPPORTED, extract
from task.documents.model import PAGE_CHARS, Block, UnsupportedFile, as_markdown, paginate
from task.errors import ToolError
from tests.support.documents import manual

EUROPE = "Größe;Straße;naïve café\nKönigsallee;Ärger;Öl\n"
RUSSIA = "Привет, мир! Это проверка.\nКак дела? 12 345 рублей.\n"
JAPAN = "日付,カテゴリー,売上\n2025-10-01,本,1200\n2025-10-02,おもちゃ,900\n" * 3
EXE = b"MZ\x90\x00\x03\x00\x00\x00" + bytes(range(256)) * 20


@pytest.mark.parametrize(
    ("name", "content_type"),
    [("a.txt", None), ("a.TXT", "image/png"), ("a", "text/plain; charset=utf-8"), ("a", None), ("a.log", None)],
)
def test_text_is_recognised_by_extension_then_type_then_content(name: str, content_type: str | None) -> None:
    found = extract(name, b"a,b\n1,2\n", content_type)
    assert (found.text, found.notes) == ("a,b\n1,2\n", ())


def test_a_content_type_replaces_a_missing_extension() -> None:
    assert extract("a", b"a,b\n1,2\n", "text/csv; charset=utf-8").text.startswith("| a | b |")
    assert extract("a", b"[1]", "application/json").text == "[\n  1\n]"


@pytest.mark.parametrize("name", ["tool.exe", "tool.txt", "tool.csv", "tool.json", "tool", "tool.pdf", "tool.zip"])
def test_binary_data_is_not_supported_whatever_its_name(name: str) -> None:
    with pytest.raises(UnsupportedFile, match=f"is not supported.* Supported are {SUPPORTED}"):
        extract(name, EXE)


@pytest.mark.parametrize("length", [1, 48, 50])
def test_nothing_but_nul_bytes_is_binary_data(length: int) -> None:
    with pytest.raises(UnsupportedFile):
        extract("a.txt", bytes(length))


@pytest.mark.fault("file: an executable")
def test_a_program_is_not_supported_whatever_it_holds() -> None:
    with pytest.raises(ToolError, match=r"'tool\.exe' is not supported"):
        extract("tool.exe", b"plain text")


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_never_taken_for_text(seed: int) -> None:
    with pytest.raises(UnsupportedFile):
        extract("noise.txt", random.Random(seed).randbytes(500 + seed * 500))


@pytest.mark.parametrize(
    ("text", "encoding", "note"),
    [
        (EUROPE, "utf-8", None),
        (EUROPE, "utf-8-sig", None),
        (EUROPE, "utf-16", "encoding UTF-16 LE"),
        (EUROPE, "utf-16-le", "encoding UTF-16 LE"),
        (EUROPE, "utf-16-be", "encoding UTF-16 BE"),
        (EUROPE, "utf-32", "encoding UTF-32 LE"),
        (EUROPE, "utf-32-be", "encoding UTF-32 BE"),
        (RUSSIA, "utf-16-le", "encoding UTF-16 LE"),
        (RUSSIA, "utf-16-be", "encoding UTF-16 BE"),
        (JAPAN, "utf-16", "encoding UTF-16 LE"),
        (EUROPE, "cp1252", "encoding Windows-1252"),
        ("name;price\nfoo;5 €\n", "cp1252", "encoding Windows-1252"),
        (RUSSIA, "cp1251", "encoding Windows-1251"),
        (RUSSIA, "koi8-r", "encoding koi8-r"),
        (JAPAN, "shift_jis", "encoding cp932"),
    ],
)
def test_the_encoding_is_detected_and_reported(text: str, encoding: str, note: str | None) -> None:
    found = extract("a.txt", text.encode(encoding))
    assert found.text == text
    assert found.notes == ((note,) if note else ())


def test_broken_letters_nuls_and_line_ends_cost_nothing_else() -> None:
    found = extract("a.txt", EUROPE.encode() + RUSSIA.encode() + b"\xff!")
    assert found.text == EUROPE + RUSSIA + "\N{REPLACEMENT CHARACTER}!"
    assert found.notes == ("unreadable characters replaced: 1",)

    found = extract("a.txt", EUROPE.encode("utf-16")[:-1])
    assert found.text == EUROPE[:-1] + "\N{REPLACEMENT CHARACTER}"

    found = extract("a.txt", b"one\r\ntwo\rthree\0\nfour")
    assert found.text == "one\ntwo\nthree\nfour"
    assert found.notes == ("NUL characters removed: 1", "mixed line ends")


@pytest.mark.fault("table: an empty file")
@pytest.mark.parametrize("content", [b"", b" \n\r\n\t ", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("suffix", sorted(READERS))
def test_nothing_but_blanks_is_an_empty_document(content: bytes, suffix: str) -> None:
    found = extract(f"a{suffix}", content)
    assert found.is_empty
    assert found.text == ""


def test_json_is_indented_with_every_number_as_it_was_and_readable_letters() -> None:
    found = extract(
        "a.json", b'{"big":123456789012345678901234567890,"f":[1.0,2e5,{},[]],"n":null,"s":"a, {b}: \\"c\\""}'
    )
    assert found.text == (
        '{\n  "big": 123456789012345678901234567890,\n  "f": [\n    1.0,\n    2e5,\n    {},\n    []\n  ],\n'
        '  "n": null,\n  "s": "a, {b}: \\"c\\""\n}'
    )

    assert extract("a.json", rb'["\u041f\u0440 \n", "\ud83d\ude00", "\ud800"]').text == (
        '[\n  "Пр \\n",\n  "😀",\n  "\\ud800"\n]'
    )


@pytest.mark.parametrize("value", [{"a": [{"b": [1, 2.5, True, None, "x\ty"]}, {}], "c": ""}, [], "text", 5])
def test_indented_json_means_what_it_meant(value: object) -> None:
    assert json.loads(extract("a.json", json.dumps(value).encode()).text) == value


@pytest.mark.parametrize("content", [b'{"a":', b"{'a': 1}", b"[" * 100_000, b"[1]\n[2]\n"])
def test_invalid_json_is_given_as_it_is_with_a_note(content: bytes) -> None:
    found = extract("a.json", content)
    assert found.text == content.decode()
    assert found.notes[0].startswith("not valid JSON (")


def test_json_that_would_grow_too_large_is_not_indented() -> None:
    content = b"[" + b",".join([b"[" * 500 + b"]" * 500] * 100) + b"]"
    found = extract("a.json", content)
    assert (found.text, found.notes) == (content.decode(), ())
    assert extract("a.json", b"[" + b"1," * 50_000 + b"1]").text == "[" + "\n  1," * 50_000 + "\n  1\n]"


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
