"""Search by words: BM25 over tokens of any script."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WORD = re.compile(r"[^\W_]+(?:[-_./'’][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af]")
_WORD_BYTES = 150  # a word in the index's vocabulary


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
