"""Documents made by code; files, readers and stores of the document search that stay in this process."""

import asyncio
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import md5

from task.core_client.files import DialFiles, FileInfo
from task.documents.extract import extract
from task.documents.model import Extraction
from task.documents.pool import ReaderPool
from task.errors import ToolError
from task.shared.redis_store import RedisStore
from task.tools.models import DownloadedFile

SALES = (
    ("Date", "Category", "Sales", "Profit"),
    *(
        (f"2025-10-0{day}", category, str(sales), str(sales // 4))
        for day, *both in ((1, 1200, 900), (2, 1350, 950), (3, 1500, 1100), (4, 1600, 1050), (5, 1700, 1200))
        for category, sales in zip("AB", both, strict=True)
    ),
)
"""Sales of two categories on five days; the top sale of A is 1700 on 2025-10-05."""


def csv_bytes(rows: Sequence[Sequence[str]], *, delimiter: str = ",", encoding: str = "utf-8") -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue().encode(encoding)


def manual(characters: int = 24_400) -> str:
    """A microwave's manual of three pages; how to clean it is on the last one, temperatures and popcorn nowhere."""
    opening = (
        "MICROWAVE OVEN - OWNER'S MANUAL\n\n1. Auto defrost\nPress AUTO DEFROST and choose meat, poultry or fish.\n\n"
    )
    closing = (
        "\n9. Cleaning\nTake out the glass tray and wash it in warm soapy water or in a dishwasher. "
        "Dry it well before you put it back on the roller ring.\n"
    )
    safety = "Keep the door seals clean and never run the oven while it is empty.\n"
    room = characters - len(opening) - len(closing)
    return opening + (safety * (room // len(safety) + 1))[:room] + closing


@dataclass
class MemoryFiles(DialFiles):
    """Files by URL, readable by the keys named for them; counts the requests."""

    contents: dict[str, bytes]
    readers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    has_etags: bool = True
    downloads: list[str] = field(default_factory=list[str])

    async def metadata(self, url: str, api_key: str) -> FileInfo:
        content = self._readable(url, api_key)
        return FileInfo(url, url.rpartition("/")[2], len(content), None, self._etag(content))

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile:
        content = self._readable(url, api_key)
        if len(content) > max_size:
            raise ToolError(f"The file is larger than {max_size:,} bytes")
        self.downloads.append(url)
        return DownloadedFile(url.rpartition("/")[2], content, None, self._etag(content))

    def _readable(self, url: str, api_key: str) -> bytes:
        if url not in self.contents:
            raise ToolError(f"There is no {url}")
        if api_key not in self.readers.get(url, {api_key}):
            raise ToolError(f"No access to {url}")
        return self.contents[url]

    def _etag(self, content: bytes) -> str | None:
        return md5(content, usedforsecurity=False).hexdigest() if self.has_etags else None


@dataclass
class SlowFiles(MemoryFiles):
    """Downloads wait for the gate; `started` are the keys of their requests."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    started: list[str] = field(default_factory=list[str])
    cancelled: int = 0

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile:
        self.started.append(api_key)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().download(url, api_key, max_size)


@dataclass
class DirectReaders(ReaderPool):
    """Reads in this process, `calls` times so far; the product does it in another."""

    calls: int = 0

    async def extraction(
        self, name: str, content: bytes, content_type: str | None = None, *, owner: str = ""
    ) -> Extraction:
        self.calls += 1
        await asyncio.sleep(0)
        return extract(name, content, content_type)

    async def close(self) -> None:
        return None


@dataclass
class MemoryStore(RedisStore):
    """A store that never fails; `asked` are the keys that were looked for."""

    url: str = ""
    values: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[str] = field(default_factory=list[str])

    async def get(self, key: str) -> bytes | None:
        self.asked.append(key)
        await asyncio.sleep(0)
        return self.values.get(key)

    async def put(self, key: str, value: bytes, seconds: int) -> None:
        self.values[key] = value

    async def drop(self, key: str) -> None:
        self.values.pop(key, None)

    async def close(self) -> None:
        return None
