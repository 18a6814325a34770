"""Find or make the index of a document, for callers who prove that they may read it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from task.embedding.client import Embedder, Progress
from task.telemetry.operations import count
from task.tools.dial_files import FileInfo
from task.tools.rag.chunks import CHUNKING, ChunkedDocument, chunk_document
from task.tools.rag.document_cache import DocumentCache
from task.tools.rag.index_store import Damaged, packed, unpacked
from task.tools.rag.search import DocumentIndex, build_index, indexed_texts
from task.tools.readings import Reading, Readings, Requester
from task.tools.shared_work import SharedWork

logger = logging.getLogger(__name__)

MAX_CHUNKS = 20_000
Observer = Callable[[Progress], None]


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
        self, readings: Readings, embedder: Embedder, cache: DocumentCache, *, max_chunks: int = MAX_CHUNKS
    ) -> None:
        self._readings = readings
        self._embedder = embedder
        self._cache = cache
        self._max_chunks = max_chunks
        self._cutting: SharedWork[_Kept, None] = SharedWork()
        self._indexing: SharedWork[DocumentIndex, Progress] = SharedWork()

    async def open(self, url: str, requester: Requester) -> Opened:
        """The document at `url`, with its index if one is kept; every call proves that its key may read the file.

        Raises:
            ToolError: the file is missing, forbidden, too large or not readable.
        """
        found = await self._readings.find(url, requester)
        index = self._cache.get_index(self._index_key(found.key)) if found.key else None
        count("cache_request", "indexes", "hit" if index is not None else "miss")
        if found.key and index is not None:
            return _opened(found.info, self._index_key(found.key), index.document, index)
        reading = await self._readings.read(found)
        key = self._index_key(reading.key)
        return _opened(found.info, key, *await self._cutting.join(key, lambda _: self._cut(key, reading)))

    async def indexed(self, opened: Opened, observer: Observer) -> DocumentIndex:
        """The document's index, made now if there is none; requests for one content share the work."""
        if opened.index is not None:
            return opened.index
        index = await self._indexing.join(
            opened.key, lambda publish: self._made(opened.key, opened.document, publish), observer
        )
        return replace(index, document=opened.document)

    async def _cut(self, key: str, reading: Reading) -> _Kept:
        if (kept := self._cache.get_index(key)) is not None:
            return kept.document, kept
        document = await asyncio.to_thread(self._chunked, reading)
        if (content := await self._readings.get(f"index:{key}")) is None:
            return document, None
        try:
            index = await asyncio.to_thread(unpacked, content, document)
        except (Damaged, ValueError):
            logger.warning("a stored index is damaged and was dropped")
            await self._readings.drop(f"index:{key}")
            return document, None
        self._cache.set_index(key, index)
        return document, index

    def _chunked(self, reading: Reading) -> ChunkedDocument:
        document = chunk_document("", reading.extraction.blocks, reading.extraction.notes)
        most = self._max_chunks
        if len(document.chunks) <= most:
            return document
        note = f"only the first {most:,} of {len(document.chunks):,} chunks are searched"
        return replace(document, chunks=document.chunks[:most], notes=(*document.notes, note))

    async def _made(self, key: str, document: ChunkedDocument, observer: Observer) -> DocumentIndex:
        vectors = await self._embedder.embed(await asyncio.to_thread(indexed_texts, document), observer)
        index = await asyncio.to_thread(build_index, document, vectors)
        self._cache.set_index(key, index)
        if self._readings.is_shared:
            await self._readings.put(f"index:{key}", await asyncio.to_thread(packed, index))
        return index

    def _index_key(self, content: str) -> str:
        parts = [content, CHUNKING, self._embedder.model_name, self._max_chunks]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _opened(info: FileInfo, key: str, document: ChunkedDocument, index: DocumentIndex | None) -> Opened:
    # One content may have several names; the citation shows the caller's.
    named = replace(document, name=info.name)
    return Opened(info.url, info.content_type, key, named, replace(index, document=named) if index else None)
