"""Read each file once: the text of documents by content, for callers who prove that they may read the file."""

import asyncio
import hashlib
import json
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from cachetools import TTLCache

from task.core_client.files import DialFiles, FileInfo
from task.core_client.models import Caller, DownloadedFile
from task.core_client.user_files import UserFiles
from task.documents import extract
from task.documents.model import Extraction, packed, unpacked
from task.documents.pool import ReaderPool
from task.shared.redis_store import RedisStore
from task.shares import Shares
from task.telemetry.operations import count

logger = logging.getLogger(__name__)

DAY_SECONDS = 86400
MAX_SIZE = 10 * 2**20
CACHE_BYTES = 64 * 2**20
PARALLEL_READS = 4
_ACCESSES = 10_000
_DIGEST_BYTES = 32
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Found:
    """A file this caller may read; `key` identifies its content, where the caller has read it before.

    `principal` is empty outside a conversation, where only the key counts. `access` identifies the right to this
    version of the file: what a user has read in a conversation is found there again without a download.
    """

    url: str
    info: FileInfo
    api_key: str
    principal: str
    access: str | None
    key: str | None


class SharedWork(Generic[_Result]):
    """Work by key, done once for all requests that wait for it; it is cancelled when the last one leaves."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[_Result]] = {}
        self._waiting: Counter[asyncio.Task[_Result]] = Counter()

    async def join(self, key: str, start: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """The result of the work under `key`, which is started with `start` unless it is running."""
        task = self._running.get(key)
        if task is None or task.done():
            task = self._running[key] = asyncio.create_task(start())
        self._waiting[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]
                if self._running.get(key) is task:
                    del self._running[key]
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
                if not task.cancelled():
                    task.exception()  # looked at, or asyncio would report it


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
        self._downloads = Shares(PARALLEL_READS)
        self._opening: SharedWork[tuple[str | None, str, Extraction]] = SharedWork()
        self._reading: SharedWork[Extraction] = SharedWork()

    async def find(self, url: str, caller: Caller) -> Found:
        """The file at `url`; every call proves that its key may read it."""
        info = await self._files.metadata(url, caller.api_key)
        principal = await caller.principal() if caller.conversation_id else ""
        access = key = None
        if info.etag is not None:
            whom = [principal, caller.conversation_id] if principal else [caller.api_key]
            access = hashlib.sha256(json.dumps([*whom, info.url, info.etag]).encode()).hexdigest()
            key = self._accesses.get(access)
            if key is None and (stored := await self.get(f"access:{access}")):
                key = stored.decode("ascii", "replace")
        return Found(url, info, caller.api_key, principal, access, key)

    async def below(self, folder: str, caller: Caller, most: int) -> tuple[list[str], bool]:
        """The URLs of up to `most` documents below a folder, and whether there may be more."""
        user = UserFiles(self._files, caller.api_key, "")
        found, more = await user.listing(user.url(folder, folder=True), 10 * most, recursive=True)
        documents = [info.url for info in found if extract.is_readable(info.name, info.content_type)]
        return documents[:most], more or len(documents) > most

    async def read(self, found: Found) -> tuple[str, Extraction]:
        """The key of the file's content, however the file is called, and its text.

        Who has not read it before proves the right to by downloading it.
        """
        known = await self._known_text(found.key) if found.key else None
        count("cache_request", "documents", "hit" if known is not None else "miss")
        if found.key and known is not None:
            return found.key, known
        info = found.info
        # Each caller downloads with a key of its own: the key may end before others' do.
        work = json.dumps([info.url, info.etag, found.api_key])
        etag, key, text = await self._opening.join(work, lambda: self._downloaded(found))
        if found.access and etag == info.etag:
            self._accesses[found.access] = key
            await self.put(f"access:{found.access}", key.encode)
        return key, text

    async def get(self, key: str) -> bytes | None:
        """What is stored under the key, beside the texts; what is damaged is dropped."""
        if self._store is None or (content := await self._store.get(key)) is None:
            return None
        value = await asyncio.to_thread(_opened, content)
        if value is None:
            logger.warning("a stored document is damaged and was dropped")
            await self._store.drop(key)
        return value

    async def put(self, key: str, value: Callable[[], bytes]) -> None:
        """Store what `value` gives, which is called in a thread, and only if there is a store."""
        if self._store is not None:
            await self._store.put(key, await asyncio.to_thread(lambda: _sealed(value())), self._seconds)

    async def drop(self, key: str) -> None:
        if self._store is not None:
            await self._store.drop(key)

    async def close(self) -> None:
        await self._readers.close()

    async def _known_text(self, key: str) -> Extraction | None:
        if (kept := self._kept.get(key)) is not None:
            return kept
        if (content := await self.get(f"text:{key}")) is None:
            return None
        text = await asyncio.to_thread(lambda: unpacked(zlib.decompress(content)))
        self._keep(key, text)
        return text

    def _keep(self, key: str, text: Extraction) -> None:
        if _size(text) <= self._kept.maxsize:
            self._kept[key] = text

    async def _downloaded(self, found: Found) -> tuple[str | None, str, Extraction]:
        owner = found.principal or found.api_key
        async with self._downloads.place(owner):
            file = await self._files.download(found.url, found.api_key, self._max_size)
            key = await asyncio.to_thread(content_key, file)
            return file.etag, key, await self._reading.join(key, lambda: self._text(key, file, owner))

    async def _text(self, key: str, file: DownloadedFile, owner: str) -> Extraction:
        if (known := await self._known_text(key)) is not None:
            return known
        text = await self._readers.extraction(file.name, file.content, file.content_type, owner=owner)
        self._keep(key, text)
        await self.put(f"text:{key}", lambda: zlib.compress(packed(text), 1))
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


def _sealed(value: bytes) -> bytes:
    return hashlib.sha256(value).digest() + value


def _opened(content: bytes) -> bytes | None:
    # What was sealed; None where bytes are missing or changed.
    value = content[_DIGEST_BYTES:]
    return value if content == _sealed(value) else None


def _size(text: Extraction) -> int:
    # Python keeps up to four bytes for a character, and about 200 for a block.
    pieces = (piece for block in text.blocks for piece in (block.text, block.heading))
    return sum(len(piece) * (1 if piece.isascii() else 4) for piece in pieces) + 200 * len(text.blocks) + 1
