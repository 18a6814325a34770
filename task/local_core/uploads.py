"""A file that is being received: bytes go to a temporary file, nothing is left if it is not kept."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

_FLUSH_BYTES = 1 << 20


class Upload:
    """Collects one file's bytes on disk, off the event loop; memory holds at most about 1 MiB of it.

    After `finish`, `path`, `size` and `etag` (md5 hex) describe the whole file. Whoever keeps the file renames `path`;
    leaving the context removes what is still there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.NamedTemporaryFile(dir=folder, delete=False)  # noqa: SIM115 - closed by finish or __exit__
        self._digest = hashlib.md5(usedforsecurity=False)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self.path = Path(self._file.name)
        self.size = 0

    async def write(self, chunk: bytes) -> None:
        self._waiting.append(chunk)
        self._waiting_bytes += len(chunk)
        self.size += len(chunk)
        if self._waiting_bytes >= _FLUSH_BYTES:
            await self._flush()

    async def finish(self) -> None:
        await self._flush()
        await asyncio.to_thread(self._file.close)

    @property
    def etag(self) -> str:
        return self._digest.hexdigest()

    async def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        await asyncio.to_thread(self._write_now, b"".join(waiting))

    def _write_now(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)
