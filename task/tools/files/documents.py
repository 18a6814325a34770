"""Documents of DIAL as pages: downloaded with the asker's key, read once per content, kept for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from cachetools import TTLCache

from task.documents.workers.pool import ReaderPool

if TYPE_CHECKING:
    from task.tools.dial_files import DownloadedFile, FileInfo

CACHE_BYTES = 64 * 2**20
CACHE_SECONDS = 15 * 60
PARALLEL_READS = 4

Pages = tuple[str, ...]
_Content = tuple[str, str]  # URL and ETag


class FileSource(Protocol):
    """Where files come from; `DialFiles` is the one of the product. Every method raises ToolError."""

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile: ...

    async def metadata(self, url: str, api_key: str) -> FileInfo: ...


class Documents:
    """Pages of documents. The cache knows contents, not people: each call first proves that its key may read the file.

    `max_size` is the largest file in bytes, `cache_bytes` what all cached pages may take together. Files are read by
    the processes of `readers`.
    """

    def __init__(
        self, files: FileSource, *, max_size: int, readers: ReaderPool, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._files = files
        self._max_size = max_size
        self._readers = readers
        self._cache: TTLCache[_Content, Pages] = TTLCache(cache_bytes, CACHE_SECONDS, getsizeof=_size)
        self._locks: WeakValueDictionary[_Content, asyncio.Lock] = WeakValueDictionary()
        self._reads = asyncio.Semaphore(PARALLEL_READS)

    async def pages(self, url: str, api_key: str) -> Pages:
        """The document's pages, the first opening with a report of how it was read; none when it holds no text.

        Raises:
            ToolError: the file is not there, not allowed, too large, not supported, or cannot be read.
        """
        info = await self._files.metadata(url, api_key)
        if info.etag is None:
            _, pages = await self._read(url, api_key)
            return pages
        content = (info.url, info.etag)
        async with self._locks.setdefault(content, asyncio.Lock()):
            if (kept := self._cache.get(content)) is not None:
                return kept
            file, pages = await self._read(url, api_key)
            if file.etag == info.etag and _size(pages) <= self._cache.maxsize:
                self._cache[content] = pages
            return pages

    async def _read(self, url: str, api_key: str) -> tuple[DownloadedFile, Pages]:
        async with self._reads:
            file = await self._files.download(url, api_key, self._max_size)
            return file, await self._readers.pages(file.name, file.content, file.content_type)


def _size(pages: Pages) -> int:
    # Python keeps up to four bytes for a character.
    return sum(len(page) * (1 if page.isascii() else 4) for page in pages) + 1
