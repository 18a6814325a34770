"""The evaluation counts correctly what is planted in tiny samples, and its own questions fit its documents."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from evaluation.__main__ import parse_arguments, with_section
from evaluation.corpus import HERE, UNANSWERABLE, Claim, Question, claims, claims_of, documents, half_of, questions
from evaluation.damaged_tables import DamagedTable, damaged_tables
from evaluation.html import librarys, measured, ours, score
from evaluation.judge import Judge, Rarity
from evaluation.library import library_questions, library_report, places
from evaluation.library import measured as measured_ranks
from evaluation.places import holds, span_of
from evaluation.report import misses, report
from evaluation.run import Corpus, all_modes, flags_of
from evaluation.tables import cells_of
from evaluation.web_pages import WebPage, web_pages
from task.documents.model import Block
from task.search.chunks import ChunkedDocument, chunk_document
from task.search.ranking import SearchOptions, build_index, indexed_texts
from tests.support.embedding import word_vector

BICYCLES = """\
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
LIBRARY = {
    "bike": "# Bicycles\n\nThe brake pads are replaced every 900 kilometres.",
    "car": "# Cars\n\nThe brake pads are replaced every 60,000 kilometres.",
}
OF_LIBRARY = [
    Question("a", "bike", "english", "How often are the brake pads of bicycles replaced?", "every 900 kilometres"),
    Question("b", "car", "english", "How often are the brake pads of cars replaced?", "every 60,000 kilometres"),
]
RIGHT = Claim("bike", "4.5 bar", "The tyres are filled to 4.5 bar.", True)
WRONG = Claim("bike", "4.5 bar", "The tyres are filled to 5.4 bar.", False)
OPTIONS = SearchOptions()


def chunked(name: str, text: str) -> ChunkedDocument:
    return chunk_document(name, [Block(text)])


def corpus(texts: Mapping[str, str], asked: Sequence[Question], limit: float = 1.1) -> Corpus:
    """Vectors of words rank without a model; they are similar, so the limit is above their similarity."""
    indexes, judges = {}, {}
    for name, text in texts.items():
        document = chunked(name, text)
        parts = indexed_texts(document)
        indexes[name] = build_index(document, np.stack([word_vector(part) for part in parts]))
        judges[name] = Judge(Rarity.of(parts), limit)
    return Corpus(indexes, {item.question: word_vector(item.question) for item in asked}, judges)


def test_ranks_quotes_refusals_and_claims_are_counted_and_the_report_gives_no_questions() -> None:
    found = all_modes(corpus({"bike": BICYCLES}, ASKED), ASKED, OPTIONS)
    first, second, third, fourth = found["hybrid"]
    assert [item.rank for item in found["lexical"]] == [1, 1, None, None]
    assert second.rank == 1
    assert (first.quote_right, first.not_literal, first.answer.false_quotes) == (True, 0, 1), "it was miscopied"
    assert (second.quote_right, second.not_literal, second.answer.false_quotes) == (True, 0, 0)
    assert (third.answer.found, fourth.answer.found) == (False, False)
    bicycle = {"bike": chunked("bike.md", BICYCLES)}
    assert flags_of(bicycle, [WRONG, RIGHT]) == [True, False]
    text = report("test", found, [RIGHT], flags_of(bicycle, [RIGHT]))
    assert "| unanswerable questions recognised | 2 of 2: 1.000 (1.000–1.000) |" in text
    assert "0 unsupported among 1: precision 1.000 (0 of 0), recall 1.000 (0 of 0)" in text
    assert not any(item.question in text for item in ASKED)
    assert misses(found["hybrid"]) == ""


def test_over_many_files_an_answer_counts_in_its_own_document_only() -> None:
    library = corpus(LIBRARY, OF_LIBRARY)
    swapped = [Question("c", "bike", "english", OF_LIBRARY[1].question, "every 900 kilometres")]
    assert [place.rank for place in places(library, OF_LIBRARY, OPTIONS)] == [1, 1]
    assert [place.rank for place in places(library, swapped, OPTIONS)] == [2]
    assert measured_ranks([1, 3, 11, None]) == ([1.0, 0, 0, 0], [1.0, 1.0, 0, 0], [1.0, 1 / 3, 0, 0])
    page = library_report(library, OF_LIBRARY, OPTIONS)
    assert page.startswith("Over 2 files at once:")
    assert "| all | 2 | 1.000 | 1.000 | 1.000 |" in page
    assert "| english | 2 |" in page


def test_the_support_check_catches_most_planted_statements() -> None:
    stated = claims_of(claims(), "development")
    flags = flags_of(documents(), stated)
    caught = sum(flag and not claim.supported for flag, claim in zip(flags, stated, strict=True))
    assert caught >= 19
    assert caught / sum(flags) >= 0.9


def test_only_totals_of_the_test_half_are_shown_in_its_own_section(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--half", "test", "--misses"])
    assert "the questions of the test half are not shown" in capsys.readouterr().err
    page = "a\n<!-- test -->\nold\n<!-- end of test -->\nb\n"
    assert with_section(page, "test", "new\n") == "a\n<!-- test -->\nnew\n<!-- end of test -->\nb\n"
    assert with_section(page, "development", "new\n") == page


def test_every_answer_and_claim_names_one_place_in_its_document() -> None:
    texts, library = documents(), documents(folder=HERE / "library")
    for question in (*questions(), *questions(HERE / "library.csv")):
        if question.answer:
            document = {**texts, **library}[question.document]
            span = span_of(question.answer, document.text)
            assert any(holds(chunk, span) for chunk in document.chunks), question.id
    for claim in claims():
        start, end = span_of(claim.place, texts[claim.document].text)
        assert end > start


def test_there_are_enough_questions_in_long_documents_and_several_languages() -> None:
    texts, asked = documents(), questions()
    assert len(texts) == 6
    assert all(len(document.chunks) >= 35 for document in texts.values())
    assert len({*texts, *documents(folder=HERE / "library")}) >= 48
    assert len(asked) >= 150
    assert Counter(question.category for question in asked)[UNANSWERABLE] >= 30
    assert all(bool(question.answer) == (question.category != UNANSWERABLE) for question in asked)
    counts = Counter(question.category for half in ("development", "test") for question in library_questions(half))
    assert set(counts) == {"english", "german", "ukrainian", "chinese", "french", "spanish"}
    assert min(counts.values()) >= 14


def test_the_halves_share_nothing_balance_every_category_and_do_not_depend_on_the_order() -> None:
    asked, stated = questions(), claims()
    one, other = half_of(asked, "development"), half_of(asked, "test")
    assert sorted(item.id for item in (*one, *other)) == sorted(item.id for item in asked)
    counts = Counter(item.category for item in one), Counter(item.category for item in other)
    assert all(abs(counts[0][name] - counts[1][name]) <= 1 for name in counts[0])
    assert half_of(reversed(asked), "test") == other
    halves = claims_of(stated, "development"), claims_of(reversed(stated), "test")
    assert Counter((*halves[0], *halves[1])) == Counter(stated)
    assert [sum(not claim.supported for claim in half) for half in halves] == [20, 20]
    assert not {item.id for item in library_questions("development")} & {item.id for item in library_questions("test")}


def test_what_is_missing_of_a_page_or_table_and_what_is_too_much_is_counted() -> None:
    main = "<h1>One two three four five</h1><table><tr><td>a<td>b</table>"
    read = (
        "# One two three four five\n\n| a | b |", "One two three four",
        "menu # One two three four five\n| a | b | menu",
    )  # fmt: skip
    full, half, wide = measured(lambda text: text, [WebPage("x", "other", "test", text, main) for text in read])
    assert (full.precision, full.recall, full.lost) == (1, 1, 0)
    assert (half.precision, half.recall, half.lost) == (1, 0.25, 2)
    assert (wide.precision, wide.recall, wide.lost) == (pytest.approx(4 / 6), 1, 0)
    right, wrong = cells_of(
        DamagedTable("x", "test", b"a,b\n1,2\n", rows)
        for rows in ([["a", "b"], ["1", "2"]], [["a", "b"], ["2", "1", "3"]])
    )
    assert (right.wanted, right.found, right.right, right.f1) == (4, 4, 4, 1)
    assert (wrong.wanted, wrong.found, wrong.right) == (5, 4, 2)


@pytest.mark.system
def test_pages_and_damaged_tables_are_read_as_well_as_the_settings_promise() -> None:
    pages = web_pages()
    articles = [page for page in pages if page.shape == "article"]
    assert score(measured(ours, articles))[2] >= score(measured(librarys, articles))[2] - 0.005
    assert [one.page.kind for one in measured(ours, pages) if one.page.shape == "other" and one.lost] == []
    files = cells_of(damaged_tables())
    assert sum(file.right for file in files) >= 0.995 * sum(file.wanted for file in files)
    assert min(file.f1 for file in files) > 0.8
