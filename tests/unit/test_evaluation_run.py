"""The evaluation counts correctly what is planted in a tiny sample, and its own questions fit its documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evaluation.__main__ import parse_arguments, with_section
from evaluation.corpus import UNANSWERABLE, Claim, Question, claims, claims_of, documents, half_of, questions
from evaluation.judge import Judge, Rarity
from evaluation.measures import difference, figure, share
from evaluation.places import chunk_at, holds, span_of
from evaluation.report import misses, report
from evaluation.run import Corpus, all_modes, flags_of
from task.documents.model import Block
from task.search.chunks import ChunkedDocument, chunk_document
from task.search.ranking import SearchOptions, build_index, indexed_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TEXT = """\
# Bicycles

## Brakes

The brake pads are replaced every 900 kilometres.

## Tyres

The tyres are filled to 4.5 bar. They carry the mark KX-77.

## Colours

The frame is green or grey."""
ASKED = [
    Question("a", "bike", "fact", "How often are the brake pads replaced?", "replaced every 900 kilometres"),
    Question("b", "bike", "identifier", "KX-77", "KX-77"),
    Question("c", "bike", "unanswerable", "What does a helmet weigh?", ""),
    Question("d", "bike", "unanswerable", "ZZ-99", ""),
]


def bicycle() -> ChunkedDocument:
    return chunk_document("bike.md", [Block(TEXT)])


def by_letters(texts: list[str]) -> NDArray[np.float32]:
    """Vectors of how often each letter occurs in a text: enough to rank, without a model."""
    import numpy as np

    counts = np.array([[text.lower().count(chr(97 + letter)) + 0.01 for letter in range(26)] for text in texts])
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def corpus() -> Corpus:
    document = bicycle()
    texts = indexed_texts(document)
    vectors = dict(zip([item.question for item in ASKED], by_letters([item.question for item in ASKED]), strict=True))
    # Letter vectors of all texts are similar, so the limit is above their similarity.
    return Corpus({"bike": build_index(document, by_letters(texts))}, vectors, {"bike": Judge(Rarity.of(texts), 1.1)})


def test_words_find_what_only_words_can_find() -> None:
    found = all_modes(corpus(), ASKED, SearchOptions())
    assert [item.rank for item in found["lexical"]] == [1, 1, None, None]
    assert found["hybrid"][1].rank == 1


def test_answers_cite_the_place_of_the_answer_even_when_the_quote_was_miscopied() -> None:
    first, second, *_ = all_modes(corpus(), ASKED, SearchOptions())["hybrid"]
    assert (first.quote_right, first.not_literal, first.answer.false_quotes) == (True, 0, 1)
    assert (second.quote_right, second.not_literal, second.answer.false_quotes) == (True, 0, 0)


def test_questions_without_an_answer_are_refused() -> None:
    *_, third, fourth = all_modes(corpus(), ASKED, SearchOptions())["hybrid"]
    assert (third.answer.found, fourth.answer.found) == (False, False)


def test_the_report_gives_counts_and_no_questions() -> None:
    found = all_modes(corpus(), ASKED, SearchOptions())
    planted = [Claim("bike", "4.5 bar", "The tyres are filled to 4.5 bar.", True)]
    text = report("test", found, planted, flags_of({"bike": bicycle()}, planted))
    assert "| unanswerable questions recognised | 2 of 2: 1.000 (1.000–1.000) |" in text
    assert "0 unsupported among 1: precision 1.000 (0 of 0), recall 1.000 (0 of 0)" in text
    assert not any(item.question in text for item in ASKED)
    assert misses(found["hybrid"]) == ""


def test_a_claim_with_another_number_is_flagged() -> None:
    wrong = Claim("bike", "4.5 bar", "The tyres are filled to 5.4 bar.", False)
    right = Claim("bike", "4.5 bar", "The tyres are filled to 4.5 bar.", True)
    assert flags_of({"bike": bicycle()}, [wrong, right]) == [True, False]


def test_the_support_check_catches_most_planted_statements() -> None:
    stated = claims_of(claims(), "development")
    flags = flags_of(documents(), stated)
    caught = sum(flag and not claim.supported for flag, claim in zip(flags, stated, strict=True))
    assert caught >= 19
    assert caught / sum(flags) >= 0.9


def test_intervals_hold_the_mean_and_repeat() -> None:
    values = [1.0, 0.0, 1.0, 1.0]
    found = figure(values)
    assert found.low <= found.mean == 0.75 <= found.high
    assert found == figure(values)
    assert difference(values, values).mean == 0
    assert share(0, 0) == 1


def test_a_place_must_be_unique() -> None:
    with pytest.raises(ValueError, match="0 times"):
        span_of("nowhere", TEXT)
    with pytest.raises(ValueError, match=r"\d times, not once"):
        span_of("The", TEXT)
    assert "900 kilometres" in bicycle().chunks[chunk_at(bicycle(), "900 kilometres")]


def test_only_totals_of_the_test_half_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--half", "test", "--misses"])
    assert "the questions of the test half are not shown" in capsys.readouterr().err
    assert parse_arguments(["--half", "test", "--candidates", "10"]).candidates == 10


def test_only_the_halfs_own_section_is_replaced() -> None:
    page = "a\n<!-- test -->\nold\n<!-- end of test -->\nb\n"
    assert with_section(page, "test", "new\n") == "a\n<!-- test -->\nnew\n<!-- end of test -->\nb\n"
    assert with_section(page, "development", "new\n") == page


def test_the_page_has_a_section_for_each_half() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    assert all(f"<!-- {half} -->" in page and f"<!-- end of {half} -->" in page for half in ("development", "test"))


@pytest.fixture(scope="module")
def texts() -> dict[str, ChunkedDocument]:
    return documents()


def test_every_answer_occurs_once_in_its_document_and_in_a_chunk(texts: dict[str, ChunkedDocument]) -> None:
    for question in questions():
        if question.answer:
            document = texts[question.document]
            span = span_of(question.answer, document.text)
            assert any(holds(chunk, span) for chunk in document.chunks), question.id


def test_every_claim_names_a_place_that_exists(texts: dict[str, ChunkedDocument]) -> None:
    for claim in claims():
        start, end = span_of(claim.place, texts[claim.document].text)
        assert end > start


def test_there_are_enough_questions_of_every_kind() -> None:
    counts = Counter(question.category for question in questions())
    assert sum(counts.values()) >= 150
    assert counts[UNANSWERABLE] >= 30
    assert all(bool(question.answer) == (question.category != UNANSWERABLE) for question in questions())
    assert Counter(claim.supported for claim in claims())[False] == 40


def test_the_documents_are_long_enough_for_search_to_matter(texts: dict[str, ChunkedDocument]) -> None:
    assert len(texts) == 6
    assert all(len(document.chunks) >= 35 for document in texts.values())
    assert {chunk.place.page for chunk in texts["heat-pump-manual"].chunks} >= {1, 2, 3, 4, 5}


def test_the_halves_share_no_question_and_balance_every_category() -> None:
    asked = questions()
    one, other = half_of(asked, "development"), half_of(asked, "test")
    assert sorted(item.id for item in (*one, *other)) == sorted(item.id for item in asked)
    counts = Counter(item.category for item in one), Counter(item.category for item in other)
    assert all(abs(counts[0][name] - counts[1][name]) <= 1 for name in counts[0])


def test_the_halves_share_no_claim() -> None:
    stated = claims()
    one, other = claims_of(stated, "development"), claims_of(reversed(stated), "test")
    assert Counter((*one, *other)) == Counter(stated)
    assert [sum(not claim.supported for claim in half) for half in (one, other)] == [20, 20]


def test_a_question_keeps_its_half_whatever_the_order_of_the_file() -> None:
    asked = questions()
    assert half_of(reversed(asked), "test") == half_of(asked, "test")
