"""Ask questions without naming a document, over all documents at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evaluation.corpus import HERE, Half, Question, documents, half_of, questions
from evaluation.measures import figure
from evaluation.places import holds, span_of
from evaluation.report import NAMES, table
from evaluation.run import MODES, Corpus, Mode, prepare, reciprocal
from task.embedding.embedder import Embedder
from task.search.chunks import ChunkedDocument
from task.search.ranking import DocumentIndex, Hit, SearchOptions, search


@dataclass(frozen=True, slots=True)
class Place:
    """Where the answer of a question was: `rank` of the first chunk with the answer, from 1, or None."""

    question: Question
    rank: int | None


def library_questions(half: Half) -> list[Question]:
    """Those of one half; their category is their language."""
    return half_of(questions(HERE / "library.csv"), half)


def library_documents() -> dict[str, ChunkedDocument]:
    """All documents, those of the other questions included."""
    return {**documents(), **documents(folder=HERE / "library")}


async def prepare_library(asked: Sequence[Question], embedder: Embedder) -> Corpus:
    """All documents, and the vectors of these questions."""
    return await prepare(library_documents(), asked, embedder)


def places(corpus: Corpus, asked: Sequence[Question], options: SearchOptions) -> list[Place]:
    return [Place(question, _rank(corpus, question, options)) for question in asked]


def library_report(corpus: Corpus, asked: Sequence[Question], options: SearchOptions) -> str:
    """Recall and MRR by language and mode."""
    found: dict[Mode, list[Place]] = {}
    for mode, weights in MODES.items():
        found[mode] = places(corpus, asked, replace(options, **weights))
    languages = sorted({question.category for question in asked})
    heads = [f"{name} {NAMES[mode]}" for mode in found for name in ("R@1", "R@3", "MRR")]
    rows = [_row("all", found), *(_row(language, found, language) for language in languages)]
    title = f"Over {len(corpus.indexes)} files at once:"
    return f"{title}\n\n{table(('Language', 'n', *heads), rows)}"


def _row(name: str, found: Mapping[Mode, Sequence[Place]], language: str = "") -> list[str]:
    groups = [[item.rank for item in items if language in ("", item.question.category)] for items in found.values()]
    values = [figure(part) for group in groups for part in measured(group)]
    return [name, str(len(groups[0])), *(f"{value.mean:.3f}" for value in values)]


def measured(ranks: Sequence[int | None]) -> tuple[list[float], list[float], list[float]]:
    """For each question: whether the first chunk, or one of the first three, has its answer; reciprocal rank."""
    first, third = ([float(rank is not None and rank <= most) for rank in ranks] for most in (1, 3))
    return first, third, [reciprocal(rank) for rank in ranks]


def _rank(corpus: Corpus, question: Question, options: SearchOptions) -> int | None:
    indexes = list(corpus.indexes.values())
    hits = search(indexes, question.question, corpus.vectors[question.question], options)
    return rank_among(corpus.indexes, question, hits)


def rank_among(indexes: Mapping[str, DocumentIndex], question: Question, hits: Sequence[Hit]) -> int | None:
    """The rank, from 1, of the first chunk of the right document that holds the answer; None if there is none."""
    right = list(indexes).index(question.document)
    document = indexes[question.document].document
    span = span_of(question.answer, document.text)
    ranked = enumerate(hits, 1)
    return next(
        (rank for rank, hit in ranked if hit.document == right and holds(document.chunks[hit.chunk], span)), None
    )
