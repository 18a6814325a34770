"""Hybrid search by meaning, words and exact phrases, fused by reciprocal rank."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from task.tools.rag.chunks import Chunk, ChunkedDocument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Mode = Literal["hybrid", "dense", "lexical"]
_QUOTED = re.compile(r"[\"“„«]([^\"”“»]{3,200})[\"”“»]")
_BLANKS = re.compile(r"\s+")
_RARE_CHUNKS = 5
_Key = tuple[int, int]
_WORD = re.compile(r"[^\W_]+(?:[-_./'’][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]")
_WORD_BYTES = 150  # a word in the index's vocabulary


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How ranks are fused: each ranking adds weight ÷ (`constant` + rank) for its first `candidates`."""

    mode: Mode = "hybrid"
    candidates: int = 50
    constant: int = 10
    dense_weight: float = 1.0
    lexical_weight: float = 1.0
    phrase_weight: float = 0.5


@dataclass(frozen=True, slots=True)
class DocumentIndex:
    """A document that can be searched; `dense` is a FAISS index of normalised rows, one per chunk."""

    document: ChunkedDocument
    dense: Any
    lexical: Lexical = field(compare=False)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.document.chunks


@dataclass(frozen=True, slots=True)
class Hit:
    """A found chunk: `document` and `chunk` count from 0; `similarity` is a cosine, `score` the fused rank."""

    document: int
    chunk: int
    similarity: float
    score: float


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
    indexes: Sequence[DocumentIndex],
    query: str,
    vector: NDArray[np.float32],
    options: SearchOptions | None = None,
) -> list[Hit]:
    """The chunks of all documents that match the query, best first; `vector` is the query's normalised row."""
    options = options or SearchOptions()
    similarities = _similarities(indexes, vector, options.candidates)
    words = _word_scores(indexes, query, options.candidates)
    rankings: list[tuple[float, list[_Key]]] = []
    if options.mode != "lexical":
        rankings.append((options.dense_weight, _ranked(similarities, options.candidates)))
    if options.mode != "dense":
        rankings.append((options.lexical_weight, _ranked(words, options.candidates)))
    if options.mode == "hybrid":
        phrases = _phrase_scores(indexes, query, {*similarities, *words})
        rankings.append((options.phrase_weight, _ranked(phrases, options.candidates)))
    fused = _fused(rankings, options.constant)
    return [
        Hit(*key, similarities[key] if key in similarities else _similarity(indexes, key, vector), fused[key])
        for key in _distinct(indexes, fused)
    ]


def _distinct(indexes: Sequence[DocumentIndex], keys: Iterable[_Key]) -> list[_Key]:
    # Chunks that repeat the text of a better one are left out: they would take the places of others.
    first: dict[str, _Key] = {}
    for document, chunk in keys:
        first.setdefault(indexes[document].chunks[chunk], (document, chunk))
    return list(first.values())


def _fused(rankings: Sequence[tuple[float, Sequence[_Key]]], constant: int) -> dict[_Key, float]:
    scores: dict[_Key, float] = {}
    for weight, ranking in rankings:
        for rank, key in enumerate(ranking, 1):
            scores[key] = scores.get(key, 0.0) + weight / (constant + rank)
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


def _ranked(scores: dict[_Key, float], candidates: int) -> list[_Key]:
    return sorted(scores, key=lambda key: (-scores[key], key))[:candidates]


def _similarities(indexes: Sequence[DocumentIndex], vector: NDArray[np.float32], candidates: int) -> dict[_Key, float]:
    found: dict[_Key, float] = {}
    for number, index in enumerate(indexes):
        distances, places = index.dense.search(vector.reshape(1, -1), min(candidates, len(index.chunks)))
        for distance, place in zip(distances[0].tolist(), places[0].tolist(), strict=True):
            found[number, place] = 1 - distance / 2
    return found


def _similarity(indexes: Sequence[DocumentIndex], key: _Key, vector: NDArray[np.float32]) -> float:
    document, chunk = key
    return float(indexes[document].dense.reconstruct(chunk) @ vector.reshape(-1))


def _word_scores(indexes: Sequence[DocumentIndex], query: str, candidates: int) -> dict[_Key, float]:
    import numpy as np

    wanted, found = tokens(query), dict[_Key, float]()
    for number, index in enumerate(indexes):
        scores = index.lexical.scores(wanted)
        best = np.argsort(-scores, kind="stable")[:candidates]
        found |= {(number, int(place)): float(scores[place]) for place in best if scores[place] > 0}
    return found


def _phrase_scores(indexes: Sequence[DocumentIndex], query: str, keys: set[_Key]) -> dict[_Key, float]:
    # The score is the number of repeated characters. Phrases that many chunks repeat ("the control panel") would only
    # disturb the other rankings.
    texts = {key: _flat(indexes[key[0]].chunks[key[1]].indexed()) for key in keys}
    found: dict[_Key, float] = {}
    for phrase in phrases_of(query):
        holders = [key for key, text in texts.items() if phrase in text]
        if len(holders) <= _RARE_CHUNKS:
            found |= {key: max(found.get(key, 0.0), float(len(phrase))) for key in holders}
    return found


def phrases_of(query: str) -> list[str]:
    """The phrases that a chunk may repeat literally: quoted parts, identifiers, and three to six words in a row."""
    words = _flat(query).split()
    runs = (" ".join(words[at : at + size]) for size in range(3, 7) for at in range(len(words) - size + 1))
    identifiers = (word.strip(".,;:!?()\"'") for word in words if any(map(str.isdigit, word)))
    quoted = map(_flat, _QUOTED.findall(query))
    return [phrase for phrase in dict.fromkeys((*quoted, *identifiers, *runs)) if len(phrase) > 2]


def _flat(text: str) -> str:
    return _BLANKS.sub(" ", folded(text)).strip()


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


class Lexical:
    """BM25 of one document's chunks."""

    def __init__(self, texts: Iterable[str]) -> None:
        numbers: dict[str, int] = {}
        # Numbers in place of words: freeing a million words at once would block the event loop.
        corpus = [[numbers.setdefault(token, len(numbers)) for token in tokens(text)] for text in texts]
        self._size = len(corpus)
        self._index = _bm25(corpus, numbers) if numbers else None

    @property
    def size_bytes(self) -> int:
        """An estimate of what the index takes in memory."""
        if self._index is None:
            return 0
        arrays = (self._index.scores[name] for name in ("data", "indices", "indptr"))
        return sum(array.nbytes for array in arrays) + _WORD_BYTES * len(self._index.vocab_dict)

    def scores(self, query: Sequence[str]) -> NDArray[np.float32]:
        """One score per chunk for the query's tokens; 0 where no token is found."""
        import numpy as np

        known = [token for token in dict.fromkeys(query) if self._index and token in self._index.vocab_dict]
        if not known or self._index is None:
            return np.zeros(self._size, dtype=np.float32)
        return self._index.get_scores(known)


def _bm25(corpus: list[list[int]], numbers: dict[str, int]) -> Any:
    from bm25s import BM25

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every index, and sets its own level on import
    index = BM25()
    index.index((corpus, numbers), show_progress=False)
    return index
