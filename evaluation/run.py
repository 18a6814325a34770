"""Ask all questions of one half in every search mode, and check each answer as the product does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from evaluation.corpus import Claim, Question
from evaluation.judge import LIMIT, Judge, Rarity
from evaluation.places import Span, chunk_at, holds, span_of
from task.embedding.embedder import Embedder
from task.search.answers import CheckedAnswer, checked, literal
from task.search.chunks import ChunkedDocument
from task.search.passages import passages
from task.search.ranking import DocumentIndex, Hit, SearchOptions, build_index, indexed_texts, search

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Mode = Literal["hybrid", "dense", "lexical"]
MODES: Mapping[Mode, Mapping[str, float]] = {
    "hybrid": {},
    "dense": {"lexical_weight": 0, "phrase_weight": 0},
    "lexical": {"lexical_weight": 1, "phrase_weight": 0},
}
K = 3
CONTEXT_TOKENS = 1500
_MISCOPIED_EVERY = 3


def reciprocal(rank: int | None) -> float:
    """Of the MRR over the first ten."""
    return 1 / rank if rank and rank <= 10 else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one question: `rank` of the first chunk with the answer, from 1, or None.

    `passage_right` is whether a cited passage holds the answer, `quote_right` whether its quote does; `not_literal`
    counts citations that are not in the document.
    """

    question: Question
    rank: int | None
    confidence: float
    answer: CheckedAnswer
    passage_right: bool
    quote_right: bool
    not_literal: int

    @property
    def in_top(self) -> float:
        return float(self.rank is not None and self.rank <= K)

    @property
    def reciprocal(self) -> float:
        return reciprocal(self.rank)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Indexed documents, and the vectors of the questions by their text."""

    indexes: Mapping[str, DocumentIndex]
    vectors: Mapping[str, NDArray[np.float32]]
    judges: Mapping[str, Judge]


async def prepare(
    documents: Mapping[str, ChunkedDocument], asked: Sequence[Question], embedder: Embedder, limit: float = LIMIT
) -> Corpus:
    """Indexes of the documents and vectors of the questions, by the product's own embedding model."""
    indexes = {
        name: build_index(document, await embedder.embed(indexed_texts(document)))
        for name, document in documents.items()
    }
    texts = [question.question for question in asked]
    vectors = dict(zip(texts, await embedder.embed(texts), strict=True))
    judges = {name: Judge(Rarity.of(indexed_texts(document)), limit) for name, document in documents.items()}
    return Corpus(indexes, vectors, judges)


def outcomes(corpus: Corpus, asked: Sequence[Question], options: SearchOptions) -> list[Outcome]:
    return [_outcome(corpus, question, options, number) for number, question in enumerate(asked)]


def all_modes(corpus: Corpus, asked: Sequence[Question], options: SearchOptions) -> dict[Mode, list[Outcome]]:
    return {mode: outcomes(corpus, asked, replace(options, **weights)) for mode, weights in MODES.items()}


def _outcome(corpus: Corpus, question: Question, options: SearchOptions, number: int) -> Outcome:
    index, judge = corpus.indexes[question.document], corpus.judges[question.document]
    hits = search([index], question.question, corpus.vectors[question.question], options)
    found = passages([index.document], hits, k=K, tokens=CONTEXT_TOKENS)
    similarity = max((hit.similarity for hit in hits[:K]), default=0.0)
    text = judge.answer(question.question, found, similarity, miscopy=number % _MISCOPIED_EVERY == 0)
    answer = checked(text, found)
    span = span_of(question.answer, index.document.text) if question.answer else None
    return Outcome(
        question,
        _rank(index.document, hits, span),
        judge.confidence(question.question, found, similarity),
        answer,
        any(_overlaps(citation.passage.source, index.document.text, span) for citation in answer.citations),
        any(_overlaps(citation.quote, index.document.text, span) for citation in answer.citations),
        sum(literal(citation.quote, index.document.text) is None for citation in answer.citations),
    )


def _rank(document: ChunkedDocument, hits: Sequence[Hit], span: Span | None) -> int | None:
    if span is None:
        return None
    return next((rank for rank, hit in enumerate(hits, 1) if holds(document.chunks[hit.chunk], span)), None)


def _overlaps(words: str, text: str, span: Span | None) -> bool:
    start = text.find(words)
    if span is None or start < 0:
        return False
    return start < span[1] and span[0] < start + len(words)


def flags_of(documents: Mapping[str, ChunkedDocument], claims: Sequence[Claim]) -> list[bool]:
    """For each claim, whether the product marks it as unsupported by the passage it is about."""
    return [_is_flagged(documents[claim.document], claim) for claim in claims]


def _is_flagged(document: ChunkedDocument, claim: Claim) -> bool:
    hit = Hit(0, chunk_at(document, claim.place), 1.0)
    found = passages([document], [hit], k=1, tokens=CONTEXT_TOKENS // K)
    return checked(f"{claim.statement} [1]", found).unsupported > 0
