"""Find or make the index of a document, for callers who prove that they may read it; indexes are kept in memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cachetools import TTLCache

from task.conversation.inputs import SENT
from task.core_client.files import FileInfo
from task.core_client.models import Caller
from task.documents.model import Extraction
from task.embedding.embedder import Observer
from task.embedding.weights import EmbeddingUnavailable
from task.search.chunks import CHUNKING, ChunkedDocument, chunk_document
from task.search.embeddings import Embeddings, KeyRefused
from task.search.ranking import Dense, DocumentIndex, Lexical, StoredVectors, indexed_texts
from task.search.readings import DAY_SECONDS, Readings, SharedWork
from task.search.vectors import MemoryVectors, VectorsGone
from task.telemetry.operations import count

if TYPE_CHECKING:
    import faiss
    import numpy as np
    from numpy.typing import NDArray

MAX_CHUNKS = 20_000
MAX_BYTES = 256 * 2**20
_PLACE_BYTES = 400  # of a chunk's place beside its text


class IndexedChunks(list[str]):
    """A document's chunks with its index; anywhere else a plain list."""

    def __init__(self, index: DocumentIndex) -> None:
        super().__init__(index.chunks)
        self.searchable = index


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
        _, chunks = self.get(key) or (None, [])
        return chunks.searchable if isinstance(chunks, IndexedChunks) else None

    def set_index(self, key: str, index: DocumentIndex) -> None:
        self.set(key, index.dense, IndexedChunks(index))


def _size(entry: tuple[faiss.Index, list[str]]) -> int:
    index, chunks = entry
    size = sum(sys.getsizeof(chunk) + _PLACE_BYTES for chunk in chunks)
    if not isinstance(index, StoredVectors):
        size += index.ntotal * index.d * 4
    if isinstance(chunks, IndexedChunks):
        size += sys.getsizeof(chunks.searchable.document.text) + chunks.searchable.lexical.size_bytes
    return size


@dataclass(frozen=True, slots=True)
class Opened:
    """A document the caller may read, with its index if there is one; `key` identifies its content."""

    url: str
    content_type: str | None
    key: str
    document: ChunkedDocument
    index: DocumentIndex | None = None


_Kept = tuple[ChunkedDocument, DocumentIndex | None]


class Shelf:
    """Indexes by content; of one document at most `max_chunks` chunks are indexed."""

    def __init__(
        self,
        readings: Readings,
        embeddings: Embeddings,
        cache: DocumentCache,
        *,
        vectors: MemoryVectors | None = None,
        max_chunks: int = MAX_CHUNKS,
    ) -> None:
        self._readings = readings
        self._embeddings = embeddings
        self._vectors = vectors or MemoryVectors(readings)
        self._cache = cache
        self._max_chunks = max_chunks
        self._cutting: SharedWork[_Kept] = SharedWork()
        self._indexing: SharedWork[DocumentIndex] = SharedWork()

    async def open(self, url: str, caller: Caller) -> Opened:
        """The document at `url`, with its index if one is kept; every call proves that its key may read the file.

        Raises:
            ToolError: the file is missing, forbidden, too large or not readable.
        """
        found = await self._readings.find(url, caller)
        index = self._cache.get_index(self._index_key(found.key)) if found.key else None
        count("cache_request", "indexes", "hit" if index is not None else "miss")
        if found.key and index is not None:
            return _opened(found.info, self._index_key(found.key), index.document, index)
        content, text = await self._readings.read(found)
        key = self._index_key(content)
        return _opened(found.info, key, *await self._cutting.join(key, lambda: self._cut(key, text)))

    async def indexed(self, opened: Opened, observer: Observer, caller: Caller | None = None) -> DocumentIndex:
        """The document's index, made now if there is none; requests for one content share the work.

        The `observer` of the request that starts the work receives its progress, until that request leaves.

        Raises:
            EmbeddingUnavailable: there are no vectors for it.
        """
        if opened.index is not None:
            return opened.index
        own, listening = False, [observer]

        def publish(done: int) -> None:
            for listener in listening:
                listener(done)

        def start() -> Coroutine[Any, Any, DocumentIndex]:
            nonlocal own
            own = True
            return self._made(opened.key, opened.document, publish, caller)

        try:
            while True:
                try:
                    index = await self._indexing.join(opened.key, start)
                    return replace(index, document=opened.document)
                except KeyRefused:  # unless it is this request's own key, of one that has ended
                    if own:
                        raise
        finally:
            listening.clear()  # others may wait for the work that this request has started

    async def similarities(
        self, opened: Opened, index: DocumentIndex, vector: NDArray[np.float32], observer: Observer, caller: Caller
    ) -> NDArray[np.float32]:
        """The cosines of a question's vector and the document's chunks.

        An index that is gone, or of another length because the model has changed, is made again.

        Raises:
            EmbeddingUnavailable: there are no vectors for it.
        """
        problem = ""
        for attempt in range(3):
            if attempt:
                index = await self.indexed(replace(opened, index=None), observer, caller)
            if index.dense.d == vector.size:
                with suppress(VectorsGone):
                    return await self._vectors.similarities(index.dense, vector)
                problem = "The index was lost while it was searched. Try again."
            else:
                problem = "The embedding model answers with vectors of different lengths. Tell the user."
                await self._vectors.drop(opened.key, index.dense.d)
        raise EmbeddingUnavailable(problem)

    async def _cut(self, key: str, text: Extraction) -> _Kept:
        if (kept := self._cache.get_index(key)) is not None:
            return kept.document, kept
        document = await asyncio.to_thread(chunk_document, "", text.blocks, text.notes)
        if len(document.chunks) > (most := self._max_chunks):
            note = f"only the first {most:,} of {len(document.chunks):,} chunks are searched"
            document = replace(document, chunks=document.chunks[:most], notes=(*document.notes, note))
        dense = await self._vectors.find(key, len(document.chunks))
        return document, await self._indexed(key, document, dense) if dense is not None else None

    async def _made(
        self, key: str, document: ChunkedDocument, observer: Observer, caller: Caller | None
    ) -> DocumentIndex:
        texts = await asyncio.to_thread(indexed_texts, document)
        dense = await self._vectors.keep(key, await self._embeddings.embed(texts, observer, caller))
        return await self._indexed(key, document, dense)

    async def _indexed(self, key: str, document: ChunkedDocument, dense: Dense) -> DocumentIndex:
        lexical = await asyncio.to_thread(lambda: Lexical(indexed_texts(document)))
        index = DocumentIndex(document, dense, lexical)
        self._cache.set_index(key, index)
        return index

    def _index_key(self, content: str) -> str:
        parts = [content, CHUNKING, self._embeddings.model_name, self._max_chunks]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _opened(info: FileInfo, key: str, document: ChunkedDocument, index: DocumentIndex | None) -> Opened:
    # One content may have several names; the citation shows the caller's.
    named = replace(document, name=SENT.sub("", info.name))
    return Opened(info.url, info.content_type, key, named, replace(index, document=named) if index else None)
