"""Keep files in a folder of the machine: whole files only, under names that no URL can influence."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self
from uuid import uuid4

from task.local.core.access import FileUrl, parse

logger = logging.getLogger(__name__)

_ABANDONED_SECONDS = 3600
_FLUSH_BYTES = 1 << 20

Check = Callable[["StoredFile | None"], None]
"""Inspects what is stored before it is changed, and raises when it must not be."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One stored file. Times are milliseconds since the epoch, `etag` is the md5 of the content in hex."""

    url: str
    content_type: str
    etag: str
    size: int
    created_at: int
    updated_at: int
    author: str
    path: Path


class Upload:
    """Collects one file's bytes on disk, off the event loop; memory holds at most about 1 MiB of it.

    After `finish`, `path`, `size` and `etag` (md5 hex) describe the whole file. Keeping it renames `path`; leaving the
    context removes what is still there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.NamedTemporaryFile(dir=folder, delete=False)  # noqa: SIM115 - closed by finish or __exit__
        self._digest = hashlib.md5(usedforsecurity=False)
        self._waiting = bytearray()
        self.path = Path(self._file.name)
        self.size = 0

    async def write(self, chunk: bytes) -> None:
        self._waiting += chunk
        self.size += len(chunk)
        if len(self._waiting) >= _FLUSH_BYTES:
            await self._flush()

    async def finish(self) -> None:
        await self._flush()
        await asyncio.to_thread(self._file.close)

    @property
    def etag(self) -> str:
        return self._digest.hexdigest()

    async def _flush(self) -> None:
        data, self._waiting = self._waiting, bytearray()
        await asyncio.to_thread(self._digest.update, data)
        await asyncio.to_thread(self._file.write, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


class FileStore:
    """Files by canonical URL, in `root`.

    A file is a JSON sidecar, named by the hash of its path, and the content file that the sidecar names. Content files
    never change: a new version is a new content file and then a sidecar that replaces the old one, so readers see the
    old file or the new one and nothing in between. Names never come from a URL and symbolic links are not followed, so
    nothing outside `root` can be reached. All methods except `upload` block: call them in a thread.

    Raises:
        PermissionError: by every method, when the folder of a bucket turns out to be a symbolic link.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._uploads = self._root / "uploads"
        # A thread lock, not an asyncio one: a cancelled request must not let the next writer in before its own
        # thread is done. What is done under it is a few renames, never a copy of content.
        self._changing = threading.Lock()
        for left in self._uploads.glob("*"):  # by a crash, or by another process that is still receiving it
            if left.lstat().st_mtime < time.time() - _ABANDONED_SECONDS:
                left.unlink(missing_ok=True)

    def upload(self) -> Upload:
        """Where the bytes of a file are collected before it is kept."""
        return Upload(self._uploads)

    def keep(self, url: str, upload: Upload, content_type: str, author: str, check: Check) -> StoredFile:
        """Store a finished upload under `url`, replacing what is there, if `check` agrees."""
        with self._changing:
            current, sidecar = self.read(url), self._sidecar(url)
            check(current)
            sidecar.parent.mkdir(parents=True, exist_ok=True)
            path = sidecar.with_name(f"{sidecar.stem[:16]}-{uuid4().hex}.data")
            now = int(time.time() * 1000)
            created = current.created_at if current else now
            kept = StoredFile(url, content_type, upload.etag, upload.size, created, now, author, path)
            upload.path.replace(path)
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(asdict(kept) | {"path": path.name}), encoding="utf-8")
            draft.replace(sidecar)
            if current:
                current.path.unlink(missing_ok=True)
            return kept

    def delete(self, url: str, check: Check) -> bool:
        """Delete if `check` agrees; False when there is nothing."""
        with self._changing:
            current = self.read(url)
            if current is None:
                return False
            check(current)
            self._sidecar(url).unlink(missing_ok=True)
            current.path.unlink(missing_ok=True)
            return True

    def open(self, url: str) -> tuple[StoredFile, BinaryIO] | None:
        """What is stored under `url` with its content, opened; it stays readable whatever happens to the file."""
        with self._changing:
            stored = self.read(url)
            content = stored and _opened(stored.path)
            return (stored, content) if stored and content else None

    def read(self, url: str) -> StoredFile | None:
        """What is stored under `url`; its `path` lasts until the file is replaced or deleted."""
        return _parsed(self._sidecar(url))

    def list(self, url: str) -> list[StoredFile]:
        """Every file below the folder, at any depth, in the order of their paths."""
        folder = parse(url)
        found = (_parsed(sidecar) for sidecar in self._bucket_folder(folder).glob("*.json"))
        files = [(parse(stored.url), stored) for stored in found if stored is not None]
        inside = [(url.path, stored) for url, stored in files if url.path.startswith(folder.path)]
        return [stored for _, stored in sorted(inside, key=lambda pair: pair[0])]

    def _bucket_folder(self, resource: FileUrl) -> Path:
        folder = self._root / "files" / resource.bucket
        if folder.resolve() != folder:
            raise PermissionError(f"the folder of bucket {resource.bucket} is a symbolic link")
        return folder

    def _sidecar(self, url: str) -> Path:
        resource = parse(url)
        return self._bucket_folder(resource) / f"{hashlib.sha256(resource.path.encode()).hexdigest()}.json"


def _parsed(sidecar: Path) -> StoredFile | None:
    file = _opened(sidecar)
    if file is None:
        return None
    with file:
        try:
            values: dict[str, Any] = json.load(file)
            values["path"] = sidecar.with_name(values["path"])
            return StoredFile(**values)
        except (ValueError, TypeError, KeyError):
            logger.warning("%s is damaged; the file is treated as missing", sidecar.name)
            return None


def _opened(path: Path) -> BinaryIO | None:
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
    except OSError:
        if path.is_symlink() or not path.exists():
            return None
        raise
