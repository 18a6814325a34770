"""Documents made by code, and files in memory that every key or only some may read."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import md5

from task.core_client.files import DialFiles, FileInfo
from task.errors import ToolError
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
