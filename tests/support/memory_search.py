"""Files, readers and stores of the document search that stay in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from task.documents.extract import extract
from task.documents.model import Extraction
from task.documents.pool import ReaderPool
from task.shared.redis_store import RedisStore
from task.tools.models import DownloadedFile
from tests.support.documents import MemoryFiles


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

    async def extraction(self, name: str, content: bytes, content_type: str | None = None) -> Extraction:
        self.calls += 1
        await asyncio.sleep(0)
        return extract(name, content, content_type)

    async def close(self) -> None:
        return None


@dataclass
class MemoryStore(RedisStore):
    """A store that never fails; `asked` are the keys that were looked for."""

    values: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[str] = field(default_factory=list[str])

    async def get(self, key: str) -> bytes | None:
        self.asked.append(key)
        await asyncio.sleep(0)
        return self.values.get(key)

    async def put(self, key: str, value: bytes, seconds: int) -> None:
        self.values[key] = value

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [await self.get(key) for key in keys]

    async def put_many(self, values: Mapping[str, bytes], seconds: int) -> None:
        self.values |= values

    async def drop(self, key: str) -> None:
        self.values.pop(key, None)

    async def close(self) -> None:
        return None
