"""Long tool results as files of the conversation's owner in DIAL."""

from __future__ import annotations

from dataclasses import dataclass

from task.tools.dial_files import DialFiles
from task.tools.models import Caller

MAX_BYTES = 20 * 2**20


@dataclass(frozen=True, slots=True)
class DialResultStore:
    """A `ResultStore` over DIAL Core; every access is made with the caller's own key."""

    files: DialFiles

    async def save(self, name: str, text: str, caller: Caller) -> str:
        return await self.files.upload(name, text.encode(), "text/plain", caller.api_key)

    async def load(self, url: str, caller: Caller) -> str:
        file = await self.files.download(url, caller.api_key, MAX_BYTES)
        return file.content.decode(errors="replace")
