"""Hybrid search by meaning, words and exact phrases, over any number of documents at once."""

from __future__ import annotations

import logging
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from task.search.chunks import Chunk, ChunkedDocument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_QUOTED = re.compile(r"[\"“„«]([^\"”“»]{3,200})[\"”“»]")
_BLANKS = re.compile(r"\s+")
_RARE_CHUNKS = 5
_PHRASE_CHARS = 40  # a longer phrase proves no more
_TERM_LETTERS = 5
_K1, _B = 0.9, 0.6  # of BM25
_WORD = re.compile(r"[^\W_]+(?:[-_./'’][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]")
_WORD_BYTES = 150  # a word in the index's vocabulary


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How chunks are scored: by words with `lexical_weight`, by meaning with the rest, both in standard deviations.

    Each letter of a rare phrase that one of the best `candidates` repeats adds `phrase_weight`.
    """

    candidates: int = 50
    lexical_weight: float = 0.35
    phrase_weight: float = 0.05


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """Vectors that a database keeps under `id` and compares itself; `d` is their length, as FAISS calls it."""

    id: int
    d: int


Dense = Any  # a FAISS index of normalised rows, one per chunk, or StoredVectors


@dataclass(frozen=True, slots=True)
class DocumentIndex:
    """A document that can be searched by the vectors of its chunks and by their words."""

    document: ChunkedDocument
    dense: Dense
    lexical: Lexical = field(compare=False)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.document.chunks


@dataclass(frozen=True, slots=True)
class Hit:
    """A found chunk: `document` and `chunk` count from 0; `similarity` is a cosine."""

    document: int
    chunk: int
    similarity: float


def indexed_texts(document: ChunkedDocument) -> list[str]:
    """The texts to embed and to search for words, one per chunk."""
    return [chunk.indexed() for chunk in document.chunks]


def build_index(document: ChunkedDocument, vectors: NDArray[np.float32]) -> DocumentIndex:
    """The index of a document whose chunks' normalised vectors are the rows of `vectors`."""
    return DocumentIndex(document, dense_index(vectors), Lexical(indexed_texts(document)))


def dense_index(vectors: NDArray[np.float32]) -> Any:
    """An exact FAISS index by Euclidean distance, which orders normalised rows like the cosine."""
    import numpy as np

    logging.getLogger("faiss").setLevel(logging.WARNING)  # on import it logs every build it looks for
    import faiss

    index = faiss.IndexFlatL2(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors))
    return index


def search(
    indexes: Sequence[DocumentIndex], query: str, vector: NDArray[np.float32], options: SearchOptions | None = None
) -> list[Hit]:
    """The best chunks of documents whose vectors are in memory, best first; `vector` is the query's normalised row."""
    return ranked(indexes, query, [similarities(index.dense, vector) for index in indexes], options)


def ranked(
    indexes: Sequence[DocumentIndex],
    query: str,
    cosines: Sequence[NDArray[np.float32]],
    options: SearchOptions | None = None,
) -> list[Hit]:
    """The best chunks of all documents for the query, best first; `cosines` has an array for each document."""
    import numpy as np

    options, meaning = options or SearchOptions(), np.concatenate(cosines)
    rarity = rarities([index.lexical for index in indexes], query)
    words = np.concatenate([index.lexical.scores(rarity) for index in indexes])
    weight = options.lexical_weight
    scores = (1 - weight) * _standardised(meaning) + weight * _standardised(words)
    starts = np.cumsum([0, *(len(index.chunks) for index in indexes)])
    best = [int(at) for at in np.argsort(-scores, kind="stable")[: options.candidates]]
    owners = [int(number) for number in np.searchsorted(starts, best, side="right") - 1]
    places = {at: (number, at - int(starts[number])) for at, number in zip(best, owners, strict=True)}
    total = {at: float(scores[at]) for at in best}
    texts = {at: _flat(indexes[number].chunks[chunk].indexed()) for at, (number, chunk) in places.items()}
    for at, letters in _phrase_letters(texts, query).items():
        total[at] += options.phrase_weight * letters
    order = sorted(total, key=lambda at: (-total[at], at))
    # Chunks that repeat the text of a better one are left out: they would take the places of others.
    first: dict[str, Hit] = {}
    for at in order:
        hit = Hit(*places[at], float(meaning[at]))
        first.setdefault(indexes[hit.document].chunks[hit.chunk], hit)
    return list(first.values())


def by_words(texts: Sequence[str], query: str) -> NDArray[np.float32]:
    """How well each of the texts fits the words of the query, by BM25: no model is needed."""
    index = Lexical(texts)
    return index.scores(rarities([index], query))


def _standardised(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    # Cosines and BM25 have no common scale, and both differ between languages and lengths of questions.
    spread = scores.std()
    return (scores - scores.mean()) / spread if spread > 0 else scores * 0


def similarities(dense: Any, vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cosines of the rows of a FAISS index and the vector."""
    # All of them are needed, for which FAISS's own search would also sort them: five times slower.
    import faiss

    rows = faiss.rev_swig_ptr(dense.get_xb(), dense.ntotal * dense.d).reshape(dense.ntotal, dense.d)
    return rows @ vector.reshape(-1)


def rarities(indexes: Sequence[Lexical], query: str) -> dict[str, float]:
    """How rare each term of the query is that occurs in the indexes."""
    # It depends on all documents searched: in one of them alone, its subject would be a common word.
    size = sum(index.size for index in indexes)
    counts = {term: sum(index.count(term) for index in indexes) for term in terms(query)}
    return {term: _rarity(size, count) for term, count in counts.items() if count}


def _rarity(chunks: int, holders: int) -> float:
    return math.log(1 + (chunks - holders + 0.5) / (holders + 0.5))


def _phrase_letters(texts: Mapping[int, str], query: str) -> dict[int, int]:
    # Phrases that many chunks repeat ("the control panel") would only disturb the other scores.
    found: dict[int, int] = {}
    for phrase, letters in phrases_of(query).items():
        holders = [place for place, text in texts.items() if phrase in text]
        if len(holders) <= _RARE_CHUNKS:
            found |= {place: max(found.get(place, 0), letters) for place in holders}
    return found


def phrases_of(query: str) -> dict[str, int]:
    """The phrases that a chunk may repeat literally, with the letters they count for.

    Identifiers, three to six words in a row, and quoted parts, which count twice as much as the longest.
    """
    words = _flat(query).split()
    runs = (" ".join(words[at : at + size]) for size in range(3, 7) for at in range(len(words) - size + 1))
    identifiers = (word.strip(".,;:!?()\"'") for word in words if any(map(str.isdigit, word)))
    quoted = {_flat(phrase): 2 * _PHRASE_CHARS for phrase in _QUOTED.findall(query)}
    found = {phrase: min(len(phrase), _PHRASE_CHARS) for phrase in (*identifiers, *runs) if len(phrase) > 2}
    return found | quoted


def _flat(text: str) -> str:
    return _BLANKS.sub(" ", folded(text)).strip()


def folded(text: str) -> str:
    """The text without compatibility forms and letter case."""
    return unicodedata.normalize("NFKC", text).casefold()


def tokens(text: str) -> list[str]:
    """The words in order; `AB-12/3` yields itself and its parts, scripts without spaces yield pairs of letters."""
    found: list[str] = []
    for word in _WORD.findall(folded(text)):
        if _WITHOUT_SPACES.search(word):
            found += [word[place : place + 2] for place in range(max(len(word) - 1, 1))]
            continue
        parts = _PART.findall(word)
        if len(parts) > 1:
            found.append(word)
        found += map(_stem, parts)
    return found


def _stem(word: str) -> str:
    # Crude, but the same for question and document.
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def terms(text: str) -> list[str]:
    """The tokens that are searched for: of a word only its first letters, so that its endings do not matter."""
    return [token[:_TERM_LETTERS] if token.isalpha() else token for token in tokens(text)]


class Lexical:
    """BM25 of one document's chunks, or of other texts; `size` counts them."""

    def __init__(self, texts: Iterable[str]) -> None:
        numbers: dict[str, int] = {}
        # Numbers in place of words: freeing a million words at once would block the event loop.
        corpus = [[numbers.setdefault(term, len(numbers)) for term in terms(text)] for text in texts]
        self.size = len(corpus)
        self._index: Any = None
        if numbers:
            from bm25s import BM25

            logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every index, and sets its level on import
            self._index = BM25(k1=_K1, b=_B)
            self._index.index((corpus, numbers), show_progress=False)

    @property
    def size_bytes(self) -> int:
        """An estimate of what the index takes in memory."""
        if self._index is None:
            return 0
        arrays = (self._index.scores[name] for name in ("data", "indices", "indptr"))
        return sum(array.nbytes for array in arrays) + _WORD_BYTES * len(self._index.vocab_dict)

    def count(self, term: str) -> int:
        """How many chunks have the term."""
        found = self._column(term)
        return found.stop - found.start

    def scores(self, rarity: Mapping[str, float]) -> NDArray[np.float32]:
        """One score per chunk for the terms, each with its rarity; 0 where no term is found."""
        import numpy as np

        found = np.zeros(self.size, dtype=np.float32)
        for term, weight in rarity.items():
            column = self._column(term)
            if self._index is not None and (count := column.stop - column.start):
                places, values = (self._index.scores[name][column] for name in ("indices", "data"))
                found[places] += values * (weight / _rarity(self.size, count))
        return found

    def _column(self, term: str) -> slice:
        if self._index is None or (number := self._index.vocab_dict.get(term)) is None:
            return slice(0, 0)
        start, stop = self._index.scores["indptr"][number : number + 2]
        return slice(int(start), int(stop))
