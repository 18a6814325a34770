"""Quotes must stand in the source literally, statements must be borne out by it."""

from __future__ import annotations

import pytest

from task.tools.rag.support import is_checkable, literal, markers, nearest_words, statements, support

SOURCE = (
    "9. Cleaning\nTake out the glass tray and wash it in “warm soapy water” or in a\n   dishwasher. Dry it well.\n"
    "The warranty lasts 24 months. It does not cover broken glass. In 2024 the plant sold 1,250 ovens for 3.5 million."
)


@pytest.mark.parametrize(
    ("quote", "words"),
    [
        ('wash it in "warm soapy water" or in a dishwasher', "wash it in “warm soapy water” or in a\n   dishwasher"),
        ("“Take out the glass tray”", "Take out the glass tray"),
        ("take out the GLASS tray", "Take out the glass tray"),
        ("Take out … Dry it well.", "Dry it well."),
        ("The warranty lasts 24\u00a0months", "The warranty lasts 24 months"),
    ],
)
def test_a_quote_is_found_as_the_documents_own_words(quote: str, words: str) -> None:
    assert literal(quote, SOURCE) == words
    assert words in SOURCE


@pytest.mark.parametrize("quote", ["The warranty lasts 36 months", "wash it in cold water", "", "…", '""'])
def test_a_quote_that_is_not_there_is_not_found(quote: str) -> None:
    assert literal(quote, SOURCE) is None


@pytest.mark.parametrize(
    "statement",
    [
        "The glass tray can be washed in warm soapy water or in a dishwasher [1].",
        "The warranty lasts 24 months [1].",
        "Broken glass is not covered [1].",
        "The plant sold 1250 ovens in 2024 [1].",
    ],
)
def test_what_the_source_says_is_supported(statement: str) -> None:
    assert support(statement, [SOURCE]).supported


@pytest.mark.parametrize(
    "statement",
    [
        "The warranty lasts 36 months [1].",
        "The glass tray must be replaced every spring by a certified technician [1].",
        "The warranty covers broken glass [1].",
        "The plant sold 1,500 ovens in 2024 [1].",
        "The glass tray is not washed in a dishwasher [1].",
    ],
)
def test_what_the_source_does_not_say_is_not_supported(statement: str) -> None:
    assert not support(statement, [SOURCE]).supported


def test_statements_are_the_whole_text_and_keep_their_markers() -> None:
    text = "Wash it, e.g. by hand. [1] Dry it well! [2, 3]\n- Version 3.5 is out.\n\n1. First step"
    assert "".join(statements(text)) == text
    assert [markers(statement) for statement in statements(text)][:2] == [[1], [2, 3]]
    assert not is_checkable("In short:")
    assert is_checkable("It lasts 24 months.")


def test_the_nearest_words_are_the_sources_own() -> None:
    assert nearest_words("How long is the warranty in months?", SOURCE) == "The warranty lasts 24 months."
