"""DocumentCache: indexes of documents in memory, for a day and up to a number of bytes."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from cachetools import TTLCache

from task.search.ranking import DocumentIndex, StoredVectors
from task.search.readings import DAY_SECONDS

if TYPE_CHECKING:
    import faiss

    from task.search.chunks import ChunkedDocument
    from task.search.ranking import Lexical

MAX_BYTES = 256 * 2**20
_PLACE_BYTES = 400  # of a chunk's place beside its text


class IndexedChunks(list[str]):
    """A document's chunks with the document and its index by words; anywhere else a plain list."""

    def __init__(self, document: ChunkedDocument, lexical: Lexical) -> None:
        super().__init__(document.chunks)
        self.document = document
        self.lexical = lexical

    @property
    def size(self) -> int:
        return sys.getsizeof(self.document.text) + self.lexical.size_bytes


class DocumentCache:
    """Indexed documents by key, for several threads. Source: API reference, DocumentCache.

    An index stays usable after it was evicted.
    """

    def __init__(self, ttl_seconds: int, max_bytes: int) -> None:
        self._lock = threading.Lock()
        self._entries: TTLCache[str, tuple[faiss.Index, list[str]]] = TTLCache(max_bytes, ttl_seconds, getsizeof=_size)

    @staticmethod
    def create(ttl_seconds: int = DAY_SECONDS, *, max_bytes: int = MAX_BYTES) -> DocumentCache:
        """An empty cache whose entries live for `ttl_seconds` and use at most `max_bytes` together."""
        return DocumentCache(ttl_seconds, max_bytes)

    @property
    def size_bytes(self) -> int:
        """An estimate of the memory of all entries."""
        with self._lock:
            return int(self._entries.currsize)

    def get(self, key: str) -> tuple[faiss.Index, list[str]] | None:
        with self._lock:
            return self._entries.get(key)

    def set(self, key: str, index: faiss.Index, chunks: list[str]) -> None:
        """Keep an index unless it is larger than the whole cache."""
        entry = (index, chunks)
        if _size(entry) > self._entries.maxsize:
            return
        with self._lock:
            self._entries[key] = entry

    def get_index(self, key: str) -> DocumentIndex | None:
        """The entry as a searchable index, if `set_index` kept it."""
        dense, chunks = self.get(key) or (None, [])
        return DocumentIndex(chunks.document, dense, chunks.lexical) if isinstance(chunks, IndexedChunks) else None

    def set_index(self, key: str, index: DocumentIndex) -> None:
        self.set(key, index.dense, IndexedChunks(index.document, index.lexical))


def _size(entry: tuple[faiss.Index, list[str]]) -> int:
    index, chunks = entry
    texts = sum(sys.getsizeof(chunk) + _PLACE_BYTES for chunk in chunks)
    vectors = 0 if isinstance(index, StoredVectors) else index.ntotal * index.d * 4
    return vectors + texts + (chunks.size if isinstance(chunks, IndexedChunks) else 0)
