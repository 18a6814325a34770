"""With the real embedding model the development half reaches the figures that led to the settings."""

import pytest

from evaluation.corpus import UNANSWERABLE, documents, half_of, questions
from evaluation.library import library_questions, measured, places, prepare_library
from evaluation.measures import difference, figure
from evaluation.report import answerable, english
from evaluation.run import all_modes, prepare
from task.embedding.embedder import Embedder
from task.search.ranking import SearchOptions

# The model is loaded from a cold, busy disk, and hundreds of answers are checked.
pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.usefixtures("weights")]


async def test_hybrid_search_finds_what_dense_search_alone_misses() -> None:
    asked = half_of(questions(), "development")
    corpus = await prepare(documents(), asked, Embedder())
    found = all_modes(corpus, asked, SearchOptions())
    hybrid, dense = ([item.in_top for item in answerable(found[mode])] for mode in ("hybrid", "dense"))
    refused = [not item.answer.found for item in found["hybrid"] if item.question.category == UNANSWERABLE]
    assert difference(hybrid, dense).low > 0
    assert figure([item.in_top for item in english(found["hybrid"])]).mean >= 0.95
    assert sum(refused) / len(refused) >= 0.9
    assert sum(item.not_literal for item in found["hybrid"]) == 0


async def test_many_files_at_once_are_searched_as_well_as_the_settings_promise() -> None:
    asked = library_questions("development")
    corpus = await prepare_library(asked, Embedder())
    first, third, _ = measured([place.rank for place in places(corpus, asked, SearchOptions())])
    assert figure(first).mean >= 0.58
    assert figure(third).mean >= 0.72
