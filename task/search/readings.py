"""Read each file once: the text of documents by content, for callers who prove that they may read the file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

from cachetools import TTLCache

from task.core_client.files import DialFiles, FileInfo
from task.core_client.models import Caller, DownloadedFile
from task.documents import extract
from task.documents.model import Block, Extraction
from task.documents.pool import ReaderPool
from task.search.shared_work import SharedWork
from task.shared.redis_store import RedisStore
from task.telemetry.operations import count

logger = logging.getLogger(__name__)

DAY_SECONDS = 86400
MAX_SIZE = 10 * 2**20
CACHE_BYTES = 64 * 2**20
PARALLEL_READS = 4
_ACCESSES = 10_000
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Requester:
    """The key of a request, and whom it stands for: what one has read is found again without a download."""

    api_key: str
    principal: str = ""
    conversation: str = ""


async def requester_of(caller: Caller | None, api_key: str, conversation: str) -> Requester:
    """Who asks: outside a conversation, or without a caller, only a key."""
    if caller is None or not conversation:
        return Requester(api_key)
    return Requester(api_key, await caller.principal(), conversation)


@dataclass(frozen=True, slots=True)
class Found:
    """A file this requester may read; `key` identifies its content, where the requester has read it before."""

    url: str
    info: FileInfo
    requester: Requester
    key: str | None = None

    @property
    def access(self) -> str | None:
        """Identifies this requester's right to this version of the file."""
        if self.info.etag is None:
            return None
        by = self.requester
        whom = [by.principal, by.conversation] if by.principal and by.conversation else [by.api_key]
        return hashlib.sha256(json.dumps([*whom, self.info.url, self.info.etag]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from a file; `key` identifies its content, however the file is called."""

    key: str
    extraction: Extraction


class Readings:
    """Documents in memory, and in `store` if there is one; `max_size` limits a file and `cache_bytes` the memory.

    Raises:
        ToolError: the file is missing, forbidden, too large, not supported, or cannot be read.
    """

    def __init__(
        self,
        files: DialFiles,
        readers: ReaderPool | None = None,
        *,
        max_size: int = MAX_SIZE,
        cache_bytes: int = CACHE_BYTES,
        seconds: int = DAY_SECONDS,
        store: RedisStore | None = None,
    ) -> None:
        self._files = files
        self._readers = readers or ReaderPool()
        self._max_size = max_size
        self._seconds = seconds
        self._store = store
        self._accesses: TTLCache[str, str] = TTLCache(_ACCESSES, seconds)
        self._kept: TTLCache[str, Extraction] = TTLCache(cache_bytes, seconds, getsizeof=_size)
        self._downloads = asyncio.Semaphore(PARALLEL_READS)
        self._opening: SharedWork[tuple[str | None, Reading], None] = SharedWork()
        self._reading: SharedWork[Extraction, None] = SharedWork()

    async def find(self, url: str, requester: Requester) -> Found:
        """The file at `url`; every call proves that its key may read it."""
        info = await self._files.metadata(url, requester.api_key)
        found = Found(url, info, requester)
        return replace(found, key=await self._known(found.access)) if found.access else found

    async def read(self, found: Found) -> Reading:
        """The file's text; who has not read it before proves the right to by downloading it."""
        known = await self._known_text(found.key) if found.key else None
        count("cache_request", "documents", "hit" if known is not None else "miss")
        if found.key and known is not None:
            return Reading(found.key, known)
        info, api_key = found.info, found.requester.api_key
        # Each caller downloads with a key of its own: the key may end before others' do.
        work = json.dumps([info.url, info.etag, api_key])
        etag, reading = await self._opening.join(work, lambda _: self._downloaded(found.url, api_key))
        if (access := found.access) and etag == info.etag:
            self._accesses[access] = reading.key
            await self.put(f"access:{access}", reading.key.encode())
        return reading

    async def get(self, key: str) -> bytes | None:
        """What is stored under the key, beside the texts."""
        return await self._store.get(key) if self._store is not None else None

    async def put(self, key: str, value: bytes) -> None:
        if self._store is not None:
            await self._store.put(key, value, self._seconds)

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """What is stored under each of the keys."""
        return await self._store.get_many(keys) if self._store is not None else [None] * len(keys)

    async def put_many(self, values: Mapping[str, bytes]) -> None:
        if self._store is not None:
            await self._store.put_many(values, self._seconds)

    async def drop(self, key: str) -> None:
        if self._store is not None:
            await self._store.drop(key)

    @property
    def is_shared(self) -> bool:
        """Whether there is a store."""
        return self._store is not None

    async def close(self) -> None:
        await self._readers.close()

    async def _known(self, access: str) -> str | None:
        if (key := self._accesses.get(access)) is not None:
            return key
        stored = await self.get(f"access:{access}")
        return stored.decode("ascii", "replace") if stored else None

    async def _known_text(self, key: str) -> Extraction | None:
        if (kept := self._kept.get(key)) is not None:
            return kept
        if (content := await self.get(f"text:{key}")) is None:
            return None
        try:
            text = await asyncio.to_thread(unpacked, content)
        except (ValueError, TypeError, zlib.error):
            logger.warning("a stored text is damaged and was dropped")
            await self.drop(f"text:{key}")
            return None
        self._keep(key, text)
        return text

    def _keep(self, key: str, text: Extraction) -> None:
        if _size(text) <= self._kept.maxsize:
            self._kept[key] = text

    async def _downloaded(self, url: str, api_key: str) -> tuple[str | None, Reading]:
        async with self._downloads:
            file = await self._files.download(url, api_key, self._max_size)
            key = await asyncio.to_thread(content_key, file)
            return file.etag, Reading(key, await self._reading.join(key, lambda _: self._text(key, file)))

    async def _text(self, key: str, file: DownloadedFile) -> Extraction:
        if (known := await self._known_text(key)) is not None:
            return known
        text = await self._readers.extraction(file.name, file.content, file.content_type)
        self._keep(key, text)
        if self._store is not None:
            await self.put(f"text:{key}", await asyncio.to_thread(packed, text))
        return text


def content_key(file: DownloadedFile) -> str:
    """A hash of the file's bytes, of how its kind is recognised, and of the readers' own code."""
    kind = [PurePosixPath(file.name).suffix.lower(), file.content_type, _readers_version()]
    digest = hashlib.sha256(json.dumps(kind).encode())
    digest.update(hashlib.sha256(file.content).digest())
    return digest.hexdigest()


@cache
def _readers_version() -> str:
    # Another version of the product may read the same file differently.
    sources = sorted(Path(extract.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def packed(text: Extraction) -> bytes:
    """The text as bytes."""
    # Line by line: one call for all of a long document would block the event loop.
    rows = (
        json.dumps(row) for row in (text.notes, *([block.text, block.heading, block.page] for block in text.blocks))
    )
    body = zlib.compress("\n".join(rows).encode(), 1)
    return hashlib.sha256(body).digest() + body


def unpacked(content: bytes) -> Extraction:
    """The text that was packed.

    Raises:
        ValueError: the bytes are cut or changed.
    """
    body = memoryview(content)[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != content[:_DIGEST_BYTES]:
        raise ValueError("these bytes are not a document's text")
    notes, *rows = (json.loads(row) for row in zlib.decompress(body).split(b"\n"))
    return Extraction(tuple(Block(*row) for row in rows), tuple(notes))


def _size(text: Extraction) -> int:
    # Python keeps up to four bytes for a character, and about 200 for a block.
    pieces = (piece for block in text.blocks for piece in (block.text, block.heading))
    return sum(len(piece) * (1 if piece.isascii() else 4) for piece in pieces) + 200 * len(text.blocks) + 1
