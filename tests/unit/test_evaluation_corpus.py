"""The evaluation's questions can be answered from its documents, and its halves never change."""

from __future__ import annotations

from collections import Counter

import pytest

from evaluation.corpus import UNANSWERABLE, claims, claims_of, documents, half_of, questions
from evaluation.places import holds, span_of
from task.tools.rag.chunks import ChunkedDocument


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
