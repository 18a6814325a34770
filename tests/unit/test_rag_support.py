"""Quotes must stand in the source literally, statements must be borne out by it."""

from __future__ import annotations

import pytest

from task.search.answers import is_checkable, is_supported, literal, markers, nearest_words, statements

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
def test_statements_of_the_source_are_supported(statement: str) -> None:
    assert is_supported(statement, [SOURCE])


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
    assert not is_supported(statement, [SOURCE])


WRAPPED = (
    "The panel opens an encrypted connection to the service portal every 15 minutes; it never accepts a call\n"
    "from outside. A lost code is told to the office without delay, within 18 hours. When the internet is away the\n"
    "clock of the panel runs for nine days without power on its own battery.\n7 Holidays\n"
    "Never cut the supply in winter. If the oven is empty, never run it.\n"
)


@pytest.mark.parametrize(
    "statement",
    [
        "The panel opens an encrypted connection to the portal every 15 minutes.",
        "A lost code is told to the office within 18 hours.",
        "The clock of the panel runs for nine days on its own battery.",
        "The supply is never cut in winter.",
        "An empty oven is never run.",
    ],
)
def test_a_no_that_belongs_to_another_part_of_the_sentence_or_page_flags_nothing(statement: str) -> None:
    assert is_supported(statement, [WRAPPED])


@pytest.mark.parametrize(
    "statement",
    [
        "The panel accepts a call from outside.",
        "The supply is cut in winter.",
        "If the oven is empty, run it.",
        "The clock of the panel does not run on its own battery.",
        "The clock runs for nine days with power.",
    ],
)
def test_a_no_that_is_left_out_or_put_in_is_noticed(statement: str) -> None:
    assert not is_supported(statement, [WRAPPED])


def test_a_citation_is_a_whole_sentence_also_over_the_end_of_a_line() -> None:
    words = nearest_words("For how many days does the clock run?", WRAPPED)
    assert words.startswith("When the internet is away")
    assert words.endswith("its own battery.")
    assert words in WRAPPED


def test_statements_are_the_whole_text_and_keep_their_markers() -> None:
    text = "Wash it, e.g. by hand. [1] Dry it well! [2, 3]\n- Version 3.5 is out.\n\n1. First step"
    assert "".join(statements(text)) == text
    assert [markers(statement) for statement in statements(text)][:2] == [[1], [2, 3]]
    assert not is_checkable("In short:")
    assert is_checkable("It lasts 24 months.")


def test_the_nearest_words_are_the_sources_own() -> None:
    assert nearest_words("How long is the warranty in months?", SOURCE) == "The warranty lasts 24 months."
