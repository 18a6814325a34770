"""Readers and stores of the document search that stay in this process."""

from __future__ import annotations

from dataclasses import dataclass, field

from task.utils.documents.extract import extract
from task.utils.documents.model import Extraction


class DirectReaders:
    """Reads in this process; the product does it in another."""

    async def extraction(self, name: str, content: bytes, content_type: str | None = None) -> Extraction:
        return extract(name, content, content_type)

    async def close(self) -> None:
        return None


@dataclass
class MemoryStore:
    """A store that never fails."""

    values: dict[str, bytes] = field(default_factory=dict[str, bytes])

    async def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    async def put(self, key: str, value: bytes, seconds: int) -> None:
        self.values[key] = value

    async def drop(self, key: str) -> None:
        self.values.pop(key, None)

    async def close(self) -> None:
        return None
