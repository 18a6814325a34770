"""The evaluation of reading: its pages and tables are fixed, its measures count, and the product keeps its figures."""

from __future__ import annotations

from collections import Counter

import pytest

from evaluation.damaged_tables import DamagedTable, damaged_tables
from evaluation.html import librarys, measured, ours, score
from evaluation.tables import cells_of
from evaluation.web_pages import WebPage, web_pages


def test_pages_and_tables_are_always_the_same_and_split_in_halves() -> None:
    assert web_pages() == web_pages()
    assert damaged_tables() == damaged_tables()
    assert set(Counter((page.kind, page.half) for page in web_pages()).values()) == {1, 2}
    assert set(Counter((table.kind, table.half) for table in damaged_tables()).values()) == {5}


def test_what_is_missing_of_a_page_and_what_is_too_much_is_counted() -> None:
    page = WebPage("x", "other", "test", "", "<h1>One two three four five</h1><table><tr><td>a<td>b</table>")
    full, half, wide = measured(
        lambda text: text,
        [
            WebPage("x", "other", "test", "# One two three four five\n\n| a | b |", page.main),
            WebPage("x", "other", "test", "One two three four", page.main),
            WebPage("x", "other", "test", "menu # One two three four five\n| a | b | menu", page.main),
        ],
    )
    assert (full.precision, full.recall, full.lost) == (1, 1, 0)
    assert (half.precision, half.recall, half.lost) == (1, 0.25, 2)
    assert (wide.precision, wide.recall, wide.lost) == (pytest.approx(4 / 6), 1, 0)


def test_cells_that_are_missing_or_wrong_are_counted() -> None:
    right, wrong = cells_of(
        DamagedTable("x", "test", b"a,b\n1,2\n", rows)
        for rows in ([["a", "b"], ["1", "2"]], [["a", "b"], ["2", "1", "3"]])
    )
    assert (right.wanted, right.found, right.right, right.f1) == (4, 4, 4, 1)
    assert (wrong.wanted, wrong.found, wrong.right) == (5, 4, 2)


@pytest.mark.system
def test_articles_are_read_as_well_as_by_the_library_and_other_pages_lose_nothing() -> None:
    pages = web_pages()
    articles = [page for page in pages if page.shape == "article"]
    assert score(measured(ours, articles))[2] >= score(measured(librarys, articles))[2] - 0.005
    assert [one.page.kind for one in measured(ours, pages) if one.page.shape == "other" and one.lost] == []


@pytest.mark.system
def test_nearly_all_cells_of_damaged_tables_are_read() -> None:
    files = cells_of(damaged_tables())
    assert sum(file.right for file in files) >= 0.995 * sum(file.wanted for file in files)
    assert min(file.f1 for file in files) > 0.8
