"""Questions over all documents at once: they fit their documents, and their places are counted correctly."""

from __future__ import annotations

from collections import Counter

import numpy as np

from evaluation.corpus import HERE, Question, documents, questions
from evaluation.judge import Judge, Rarity
from evaluation.library import library_questions, library_report, measured, places
from evaluation.places import holds, span_of
from evaluation.run import Corpus
from task.documents.model import Block
from task.search.chunks import chunk_document
from task.search.ranking import SearchOptions, build_index, indexed_texts
from tests.support.embedding import word_vector

TEXTS = {
    "bike": "# Bicycles\n\nThe brake pads are replaced every 900 kilometres.",
    "car": "# Cars\n\nThe brake pads are replaced every 60,000 kilometres.",
}
ASKED = [
    Question("a", "bike", "english", "How often are the brake pads of bicycles replaced?", "every 900 kilometres"),
    Question("b", "car", "english", "How often are the brake pads of cars replaced?", "every 60,000 kilometres"),
]


def corpus() -> Corpus:
    indexes = {}
    for name, text in TEXTS.items():
        document = chunk_document(name, [Block(text)])
        indexes[name] = build_index(document, np.stack([word_vector(text) for text in indexed_texts(document)]))
    vectors = {question.question: word_vector(question.question) for question in ASKED}
    return Corpus(indexes, vectors, {name: Judge(Rarity.of([text])) for name, text in TEXTS.items()})


def test_every_answer_stands_once_in_its_document_and_in_a_chunk() -> None:
    read = documents(folder=HERE / "library")
    for question in questions(HERE / "library.csv"):
        span = span_of(question.answer, read[question.document].text)
        assert any(holds(chunk, span) for chunk in read[question.document].chunks), question.id


def test_there_are_many_files_in_several_languages_and_the_halves_share_no_question() -> None:
    one, other = library_questions("development"), library_questions("test")
    assert not {question.id for question in one} & {question.id for question in other}
    assert len({*documents(), *documents(folder=HERE / "library")}) >= 48
    counts = Counter(question.category for question in (*one, *other))
    assert set(counts) == {"english", "german", "ukrainian", "chinese", "french", "spanish"}
    assert min(counts.values()) >= 14


def test_an_answer_counts_in_its_own_document_only() -> None:
    assert [place.rank for place in places(corpus(), ASKED, SearchOptions())] == [1, 1]
    swapped = [Question("c", "bike", "english", ASKED[1].question, "every 900 kilometres")]
    [place] = places(corpus(), swapped, SearchOptions())
    assert place.rank == 2


def test_ranks_become_recall_and_reciprocal_ranks() -> None:
    first, third, inverse = measured([1, 3, 11, None])
    assert (first, third, inverse) == ([1.0, 0, 0, 0], [1.0, 1.0, 0, 0], [1.0, 1 / 3, 0, 0])


def test_the_report_has_a_row_for_each_language() -> None:
    page = library_report(corpus(), ASKED, SearchOptions())
    assert page.startswith("Over 2 files at once:")
    assert "| all | 2 | 1.000 | 1.000 | 1.000 |" in page
    assert "| english | 2 |" in page
