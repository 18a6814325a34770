"""The tool that reads the user's files for the model, page by page."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote
from weakref import WeakValueDictionary

from cachetools import TTLCache

from task.conversation.messages import Message
from task.documents.extract import SUPPORTED
from task.documents.model import PAGE_CHARS, page_of
from task.documents.pool import ReaderPool
from task.tools.base import BaseTool
from task.tools.dial_files import DialFiles, UnpooledFiles
from task.tools.models import DownloadedFile, ToolCallParams
from task.tools.toolbox import request_arguments, response

MAX_SIZE = 10 * 2**20
CACHE_BYTES = 64 * 2**20
CACHE_SECONDS = 15 * 60
PARALLEL_READS = 4

Pages = tuple[str, ...]
_Content = tuple[str, str]  # URL and ETag


class Documents:
    """Pages of documents, cached by content: each call first proves that its key may read the file.

    `max_size` limits one file and `cache_bytes` all cached pages.
    """

    def __init__(self, files: DialFiles, *, max_size: int, readers: ReaderPool, cache_bytes: int = CACHE_BYTES) -> None:
        self._files = files
        self._max_size = max_size
        self._readers = readers
        self._cache: TTLCache[_Content, Pages] = TTLCache(cache_bytes, CACHE_SECONDS, getsizeof=_size)
        self._locks: WeakValueDictionary[_Content, asyncio.Lock] = WeakValueDictionary()
        self._reads = asyncio.Semaphore(PARALLEL_READS)

    async def pages(self, url: str, api_key: str) -> Pages:
        """The document's pages, the first opening with a report of how it was read; none if it contains no text.

        Raises:
            ToolError: the file is missing, forbidden, too large, not supported, or cannot be read.
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


class FileContentExtractionTool(BaseTool):
    """Text of files in DIAL, with tables as Markdown. Source: API reference, FileContentExtractionTool.

    `endpoint` is DIAL Core's address, `max_size` the largest file in bytes. `close` ends the `readers`.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        files: DialFiles | None = None,
        max_size: int = MAX_SIZE,
        readers: ReaderPool | None = None,
    ) -> None:
        self._readers = readers or ReaderPool()
        self._documents = Documents(files or UnpooledFiles(endpoint), max_size=max_size, readers=self._readers)

    @property
    def name(self) -> str:
        return "file_content_extraction_tool"

    @property
    def description(self) -> str:
        return (
            f"Read the text of a file attached to the conversation ({SUPPORTED}); tables come as Markdown. A long file "
            f"comes in pages of {PAGE_CHARS:,} characters; the last line of a page says how many there are."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "file_url": {"type": "string", "description": "The URL of the file to extract content from"},
                "page": {
                    "type": "integer",
                    "description": f"Page number (default 1). Each page = {PAGE_CHARS:,} chars",
                    "default": 1,
                },
            },
            "required": ["file_url"],
        }

    @property
    def show_in_stage(self) -> bool:
        return False

    def title(self, arguments: dict[str, Any]) -> str:
        file = unquote(PurePosixPath(arguments["file_url"]).name)[:60]
        page = f", page {arguments['page']}" if arguments["page"] != 1 else ""
        return f"{self.name}: {file}{page}"

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        url, page = str(arguments["file_url"]), int(arguments["page"])
        tool_call_params.stage.append_content(
            request_arguments({"file_url": url} if page == 1 else {"file_url": url, "page": page})
        )
        text = page_of(await self._documents.pages(url, tool_call_params.api_key), page)
        tool_call_params.stage.append_content(response(text))
        return text

    async def close(self) -> None:
        await self._readers.close()
