"""Reading HTML: what a person sees on the page becomes Markdown, in order, and nothing else does."""

from __future__ import annotations

import pytest

from task.documents.extract import extract
from tests.support.html_pages import PAGES, SCENARIO_7, Page

LETTER = "Съешь же ещё этих мягких французских булок, да выпей чаю."


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_a_page_gives_its_visible_text(page: Page) -> None:
    found = extract("page.html", page.html.encode())
    assert found.text == page.text
    assert any(note.startswith("menus and banners left out") for note in found.notes) == page.is_site


def test_a_table_of_a_page_is_a_block_with_its_header() -> None:
    rows = "".join(f"<tr><td>{row}</td></tr>" for row in range(3))
    (table,) = extract("t.html", f"<table><tr><th>n</th></tr>{rows}</table>".encode()).blocks
    assert (table.heading, table.text) == ("| n |\n| --- |", "| 0 |\n| 1 |\n| 2 |")


@pytest.mark.parametrize("tag", ["b", "ul><li", "table><tr><td"])
def test_ten_thousand_nested_tags_are_read(tag: str) -> None:
    found = extract("deep.html", f"<p>above</p>{f'<{tag}>' * 10_000}the bottom".encode())
    assert "above" in found.text
    assert "the bottom" in found.text
    assert len(found.text) < 1_000


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (f"<meta charset=utf-8><p>{LETTER}".encode(), "text/html; charset=windows-1251"),
        (f"<p>{LETTER}".encode(), "text/html; charset=iso-8859-1"),
        (f"<p>{LETTER}".encode("cp1251"), "text/html; charset=windows-1251"),
        (f"<meta charset='windows-1251'><p>{LETTER}".encode("cp1251"), "text/html; charset=utf-8"),
        (f"<meta charset='utf-8'><p>{LETTER * 3}".encode("cp1251"), "text/html; charset=utf-8"),
        (f"<meta http-equiv=Content-Type content='text/html; charset=koi8-r'><p>{LETTER}".encode("koi8-r"), ""),
        (f"<?xml version='1.0' encoding='koi8-r'?><html><p>{LETTER}".encode("koi8-r"), ""),
        (f"<p>{LETTER}".encode("utf-16"), "text/html; charset=utf-8"),
        (f"<meta charset=no-such-charset><p>{LETTER * 3}".encode("cp1251"), "text/html; charset=nonsense"),
    ],
    ids=["header", "header-only", "right-header", "meta", "both", "old-meta", "xml", "mark", "unknown"],
)
def test_a_wrong_encoding_declaration_does_no_harm(content: bytes, content_type: str) -> None:
    assert LETTER in extract("page.html", content, content_type).text


def test_a_page_without_extension_is_recognised_by_its_type() -> None:
    assert extract("page", SCENARIO_7.encode(), "text/html; charset=utf-8").text == PAGES["scenario 7"].text


def test_a_site_page_with_little_main_content_is_kept_whole_except_for_menus() -> None:
    rows = "".join(f"<div><span>{name}</span></div>" for name in ("bolt", "nut", "washer", "spring", "seal", "gasket"))
    found = extract("parts.html", f"<nav>Home Shop Contact</nav>{rows}<footer>Imprint</footer>".encode())
    assert found.text.split() == ["bolt", "nut", "washer", "spring", "seal", "gasket"]
