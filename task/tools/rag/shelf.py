"""Find or make the index of a document, for callers who prove that they may read it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from cachetools import TTLCache

from task.documents.model import Extraction
from task.embedding.client import Progress
from task.tools.rag.chunks import CHUNKING, ChunkedDocument, chunk_document
from task.tools.rag.codec import Damaged, packed, unpacked
from task.tools.rag.document_cache import DAY_SECONDS, DocumentCache
from task.tools.rag.flights import Flights
from task.tools.rag.search import DocumentIndex, build_index, indexed_texts
from task.tools.rag.sources import FileContent, FileInfo, FileSource
from task.tools.rag.store import IndexStore, NoStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_ACCESSES = 10_000
_SHORT_CHARS, _SHORT_DOCUMENTS = 20_000, 200  # documents that are read whole have no index to be found by
Tell = Callable[[Progress], None]


class DocumentReader(Protocol):
    """Reads documents; `ReaderPool` is the one of the product."""

    async def extraction(self, name: str, content: bytes, content_type: str | None = None) -> Extraction: ...

    async def close(self) -> None: ...


class Vectors(Protocol):
    """Embeds texts; `Embedder` is the one of the product."""

    @property
    def model_name(self) -> str: ...

    async def embed(self, texts: Sequence[str], observer: Tell | None = None) -> NDArray[np.float32]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks: the key of the request and, where indexes are kept, the principal and the conversation."""

    api_key: str
    principal: str = ""
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class ShelfLimits:
    """The largest file in bytes, the most chunks of one document, and how many seconds indexes are kept."""

    max_size: int = 10 * 2**20
    max_chunks: int = 20_000
    ttl_seconds: int = DAY_SECONDS


@dataclass(frozen=True, slots=True)
class Opened:
    """A document the caller may read; `index` is there when it was found, `key` names its content."""

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
    """Indexes by content. An access key, the caller and the file's version, leads to a content without a download."""

    def __init__(
        self,
        files: FileSource,
        readers: DocumentReader,
        embedder: Vectors,
        cache: DocumentCache,
        *,
        store: IndexStore | None = None,
        limits: ShelfLimits | None = None,
    ) -> None:
        self._files = files
        self._readers = readers
        self._embedder = embedder
        self._cache = cache
        self._store: IndexStore = store or NoStore()
        self._limits = limits or ShelfLimits()
        self._accesses: TTLCache[str, str] = TTLCache(_ACCESSES, self._limits.ttl_seconds)
        self._short: TTLCache[str, ChunkedDocument] = TTLCache(_SHORT_DOCUMENTS, self._limits.ttl_seconds)
        self._in_use: WeakValueDictionary[str, ChunkedDocument] = WeakValueDictionary()  # read, but not yet indexed
        self._downloading: Flights[_Read, None] = Flights()
        self._fetching: Flights[DocumentIndex | None, None] = Flights()
        self._reading: Flights[ChunkedDocument, None] = Flights()
        self._indexing: Flights[DocumentIndex, Progress] = Flights()

    async def open(self, url: str, requester: Requester) -> Opened:
        """The document at `url`, with its index where one is kept; each call proves anew that its key may read it.

        Raises:
            ToolError: the file is not there, not allowed, too large or not readable.
        """
        info = await self._files.metadata(url, requester.api_key)
        access = _access_key(info, requester)
        if access and (key := await self._known(access)) and (kept := await self._kept(key)):
            return _opened(info, key, *kept)
        read = await self._read(url, info, requester.api_key)
        if access and read.etag == info.etag:
            self._accesses[access] = read.key
            await self._store.put(f"access:{access}", read.key.encode(), self._limits.ttl_seconds)
        opened = _opened(info, read.key, read.document, read.index)
        self._in_use[opened.key] = opened.document
        return opened

    async def indexed(self, opened: Opened, tell: Tell) -> DocumentIndex:
        """The document's index, made now where there is none; requests for one content share the work."""
        if opened.index is not None:
            return opened.index
        index = await self._indexing.join(
            opened.key, lambda news: self._made(opened.key, opened.document, news), tell
        )  # fmt: skip
        return replace(index, document=opened.document)

    async def close(self) -> None:
        await self._store.close()

    async def _known(self, access: str) -> str | None:
        if (key := self._accesses.get(access)) is not None:
            return key
        told = await self._store.get(f"access:{access}")
        return told.decode("ascii", "replace") if told else None

    async def _kept(self, key: str) -> tuple[ChunkedDocument, DocumentIndex | None] | None:
        index = self._cache.get_index(key) or await self._fetching.join(key, lambda _: self._stored(key), _unheard)
        if index is not None:
            return index.document, index
        document = self._short.get(key) or self._in_use.get(key)
        return (document, None) if document is not None else None

    async def _stored(self, key: str) -> DocumentIndex | None:
        if (content := await self._store.get(f"index:{key}")) is None:
            return None
        try:
            index = await asyncio.to_thread(unpacked, content)
        except (Damaged, ValueError, KeyError, TypeError):
            logger.warning("a stored index is damaged and was dropped")
            await self._store.drop(f"index:{key}")
            return None
        self._cache.set_index(key, index)
        return index

    async def _read(self, url: str, info: FileInfo, api_key: str) -> _Read:
        # Each caller downloads with a key of its own: it proves the right to read, and may end before others' do.
        flight = json.dumps([info.url, info.etag, api_key])
        return await self._downloading.join(flight, lambda _: self._downloaded(url, api_key), _unheard)

    async def _downloaded(self, url: str, api_key: str) -> _Read:
        file = await self._files.download(url, api_key, self._limits.max_size)
        key = await asyncio.to_thread(self._content_key, file)
        if (kept := await self._kept(key)) is not None:
            return _Read(key, file.etag, *kept)
        return _Read(key, file.etag, await self._reading.join(key, lambda _: self._chunked(key, file), _unheard))

    async def _chunked(self, key: str, file: FileContent) -> ChunkedDocument:
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

    async def _made(self, key: str, document: ChunkedDocument, tell: Tell) -> DocumentIndex:
        vectors = await self._embedder.embed(await asyncio.to_thread(indexed_texts, document), tell)
        index = await asyncio.to_thread(build_index, document, vectors)
        self._cache.set_index(key, index)
        if not isinstance(self._store, NoStore):
            content = await asyncio.to_thread(packed, index)
            await self._store.put(f"index:{key}", content, self._limits.ttl_seconds)
        return index

    def _content_key(self, file: FileContent) -> str:
        kind = [PurePosixPath(file.name).suffix.lower(), file.content_type, CHUNKING, self._embedder.model_name]
        digest = hashlib.sha256(json.dumps([*kind, self._limits.max_chunks]).encode())
        digest.update(hashlib.sha256(file.content).digest())
        return digest.hexdigest()


def _unheard(_: None) -> None:
    """Nobody is told how far such work is."""


def _access_key(info: FileInfo, requester: Requester) -> str | None:
    if not (requester.principal and requester.conversation and info.etag):
        return None
    told = json.dumps([requester.principal, requester.conversation, info.url, info.etag])
    return hashlib.sha256(told.encode()).hexdigest()


def _opened(info: FileInfo, key: str, document: ChunkedDocument, index: DocumentIndex | None) -> Opened:
    # One content may go by several names; the citation shows the caller's.
    named = replace(document, name=info.name)
    return Opened(info.url, info.content_type, key, named, replace(index, document=named) if index else None)
