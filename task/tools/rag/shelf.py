"""Find or make the index of a document, for callers who prove that they may read it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from cachetools import TTLCache

from task.documents.model import Extraction
from task.documents.pool import ReaderPool
from task.embedding.client import Embedder, Progress
from task.tools.dial_files import DialFiles, FileInfo
from task.tools.models import DownloadedFile
from task.tools.rag.chunks import CHUNKING, ChunkedDocument, chunk_document
from task.tools.rag.document_cache import DAY_SECONDS, DocumentCache
from task.tools.rag.index_store import Damaged, RedisStore, packed, unpacked
from task.tools.rag.search import DocumentIndex, build_index, indexed_texts

logger = logging.getLogger(__name__)

_ACCESSES = 10_000
_SHORT_CHARS, _SHORT_DOCUMENTS = 20_000, 200  # documents that are read whole and have no index
Observer = Callable[[Progress], None]
_Result = TypeVar("_Result")
_News = TypeVar("_News")


@dataclass(frozen=True, slots=True)
class Requester:
    """The key of a request; with principal and conversation, indexes are found again without a download."""

    api_key: str
    principal: str = ""
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class ShelfLimits:
    """The largest file in bytes, the most chunks of one document, and the seconds for which indexes are kept."""

    max_size: int = 10 * 2**20
    max_chunks: int = 20_000
    ttl_seconds: int = DAY_SECONDS


@dataclass(frozen=True, slots=True)
class Opened:
    """A document the caller may read, with its index if there is one; `key` identifies its content."""

    url: str
    content_type: str | None
    key: str
    document: ChunkedDocument
    index: DocumentIndex | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    key: str
    etag: str | None
    document: ChunkedDocument
    index: DocumentIndex | None = None


class Shelf:
    """Indexes by content. An access key, from the caller and the file's version, leads to one without a download."""

    def __init__(
        self,
        files: DialFiles,
        readers: ReaderPool,
        embedder: Embedder,
        cache: DocumentCache,
        *,
        store: RedisStore | None = None,
        limits: ShelfLimits | None = None,
    ) -> None:
        self._files = files
        self._readers = readers
        self._embedder = embedder
        self._cache = cache
        self._store = store
        self._limits = limits or ShelfLimits()
        self._accesses: TTLCache[str, str] = TTLCache(_ACCESSES, self._limits.ttl_seconds)
        self._short: TTLCache[str, ChunkedDocument] = TTLCache(_SHORT_DOCUMENTS, self._limits.ttl_seconds)
        self._in_use: WeakValueDictionary[str, ChunkedDocument] = WeakValueDictionary()  # read, but not yet indexed
        self._downloading: SharedWork[_Read, None] = SharedWork()
        self._fetching: SharedWork[DocumentIndex | None, None] = SharedWork()
        self._reading: SharedWork[ChunkedDocument, None] = SharedWork()
        self._indexing: SharedWork[DocumentIndex, Progress] = SharedWork()

    async def open(self, url: str, requester: Requester) -> Opened:
        """The document at `url`, with its index if one is kept; every call proves that its key may read the file.

        Raises:
            ToolError: the file is missing, forbidden, too large or not readable.
        """
        info = await self._files.metadata(url, requester.api_key)
        access = _access_key(info, requester)
        if access and (key := await self._known(access)) and (kept := await self._kept(key)):
            return _opened(info, key, *kept)
        # Each caller downloads with a key of its own: it proves the right to read, and may end before others' do.
        work = json.dumps([info.url, info.etag, requester.api_key])
        read = await self._downloading.join(work, lambda _: self._downloaded(url, requester.api_key))
        if access and read.etag == info.etag:
            self._accesses[access] = read.key
            await self._put(f"access:{access}", read.key.encode())
        opened = _opened(info, read.key, read.document, read.index)
        self._in_use[opened.key] = opened.document
        return opened

    async def indexed(self, opened: Opened, observer: Observer) -> DocumentIndex:
        """The document's index, made now if there is none; requests for one content share the work."""
        if opened.index is not None:
            return opened.index
        index = await self._indexing.join(
            opened.key, lambda publish: self._made(opened.key, opened.document, publish), observer
        )
        return replace(index, document=opened.document)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

    async def _known(self, access: str) -> str | None:
        if (key := self._accesses.get(access)) is not None:
            return key
        stored = await self._get(f"access:{access}")
        return stored.decode("ascii", "replace") if stored else None

    async def _kept(self, key: str) -> tuple[ChunkedDocument, DocumentIndex | None] | None:
        index = self._cache.get_index(key) or await self._fetching.join(key, lambda _: self._stored(key))
        if index is not None:
            return index.document, index
        document = self._short.get(key) or self._in_use.get(key)
        return (document, None) if document is not None else None

    async def _stored(self, key: str) -> DocumentIndex | None:
        if self._store is None or (content := await self._get(f"index:{key}")) is None:
            return None
        try:
            index = await asyncio.to_thread(unpacked, content)
        except (Damaged, ValueError, KeyError, TypeError):
            logger.warning("a stored index is damaged and was dropped")
            await self._store.drop(f"index:{key}")
            return None
        self._cache.set_index(key, index)
        return index

    async def _get(self, key: str) -> bytes | None:
        return await self._store.get(key) if self._store is not None else None

    async def _put(self, key: str, value: bytes) -> None:
        if self._store is not None:
            await self._store.put(key, value, self._limits.ttl_seconds)

    async def _downloaded(self, url: str, api_key: str) -> _Read:
        file = await self._files.download(url, api_key, self._limits.max_size)
        key = await asyncio.to_thread(self._content_key, file)
        if (kept := await self._kept(key)) is not None:
            return _Read(key, file.etag, *kept)
        return _Read(key, file.etag, await self._reading.join(key, lambda _: self._chunked(key, file)))

    async def _chunked(self, key: str, file: DownloadedFile) -> ChunkedDocument:
        found = await self._readers.extraction(file.name, file.content, file.content_type)
        document = self._in_use[key] = await asyncio.to_thread(self._cut, file.name, found)
        if len(document.text) <= _SHORT_CHARS:
            self._short[key] = document
        return document

    def _cut(self, name: str, found: Extraction) -> ChunkedDocument:
        document = chunk_document(name, found.blocks, found.notes)
        most = self._limits.max_chunks
        if len(document.chunks) <= most:
            return document
        note = f"only the first {most:,} of {len(document.chunks):,} chunks are searched"
        return replace(document, chunks=document.chunks[:most], notes=(*document.notes, note))

    async def _made(self, key: str, document: ChunkedDocument, observer: Observer) -> DocumentIndex:
        vectors = await self._embedder.embed(await asyncio.to_thread(indexed_texts, document), observer)
        index = await asyncio.to_thread(build_index, document, vectors)
        self._cache.set_index(key, index)
        if self._store is not None:
            await self._put(f"index:{key}", await asyncio.to_thread(packed, index))
        return index

    def _content_key(self, file: DownloadedFile) -> str:
        kind = [PurePosixPath(file.name).suffix.lower(), file.content_type, CHUNKING, self._embedder.model_name]
        digest = hashlib.sha256(json.dumps([*kind, self._limits.max_chunks]).encode())
        digest.update(hashlib.sha256(file.content).digest())
        return digest.hexdigest()


def _access_key(info: FileInfo, requester: Requester) -> str | None:
    if not (requester.principal and requester.conversation and info.etag):
        return None
    parts = json.dumps([requester.principal, requester.conversation, info.url, info.etag])
    return hashlib.sha256(parts.encode()).hexdigest()


def _opened(info: FileInfo, key: str, document: ChunkedDocument, index: DocumentIndex | None) -> Opened:
    # One content may have several names; the citation shows the caller's.
    named = replace(document, name=info.name)
    return Opened(info.url, info.content_type, key, named, replace(index, document=named) if index else None)


@dataclass(slots=True)
class _Running(Generic[_Result, _News]):
    listeners: list[Callable[[_News], None]] = field(default_factory=list)
    task: asyncio.Task[_Result] | None = None

    def publish(self, news: _News) -> None:
        for listener in tuple(self.listeners):
            listener(news)


class SharedWork(Generic[_Result, _News]):
    """Work by key, whose news all waiting requests receive; it is cancelled when the last one has left."""

    def __init__(self) -> None:
        self._running: dict[str, _Running[_Result, _News]] = {}

    async def join(
        self,
        key: str,
        start: Callable[[Callable[[_News], None]], Coroutine[Any, Any, _Result]],
        listener: Callable[[_News], None] = lambda _: None,
    ) -> _Result:
        """The result of the work under `key`, which is started with `start` unless it is running."""
        running = self._running.get(key)
        if running is None or running.task is None or running.task.done():
            running = self._running[key] = _Running()
            running.task = asyncio.create_task(start(running.publish))
        task = running.task
        running.listeners.append(listener)
        try:
            return await asyncio.shield(task)
        finally:
            running.listeners.remove(listener)
            if not running.listeners:
                await self._end(key, running, task)

    async def _end(self, key: str, running: _Running[_Result, _News], task: asyncio.Task[_Result]) -> None:
        if self._running.get(key) is running:
            del self._running[key]
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
