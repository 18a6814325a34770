"""Keep files in a folder of the machine: whole files only, under names that no URL can influence."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from task.local.core.access import Access, AccessRules, FileUrl, Principal, parse

_CHUNK_BYTES = 1 << 18
Check = Callable[["StoredFile | None"], None]  # inspects what is stored; raises where it must not be changed


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


class FileStore:
    """Files and applications by canonical URL, in `root`.

    A file is a JSON sidecar, named by the hash of its path, and the content file that the sidecar names. Content files
    never change: a new version is a new content file and then a sidecar that replaces the old one, so readers see the
    old file or the new one and nothing in between. Names never come from a URL and symbolic links are not followed, so
    nothing outside `root` can be reached. All methods block: call them in a thread. All ask for the caller's right,
    however the URL was found.

    Raises:
        Refusal: by every method, 403 where the caller may not do that.
        PermissionError: by every method, when the folder of a bucket turns out to be a symbolic link.
    """

    def __init__(self, root: Path, access: AccessRules) -> None:
        self._root, self._access = root.resolve(), access
        # A thread lock, not an asyncio one: a cancelled request must not let the next writer in before its own
        # thread is done. What is done under it is a few renames, never a copy of content.
        self._changing = threading.Lock()

    def keep(
        self, caller: Principal, url: str, content: BinaryIO, content_type: str, author: str, check: Check
    ) -> StoredFile:
        """Store the content under `url`, replacing what is there, if `check` agrees."""
        sidecar, digest, size = self._sidecar(caller, url, "READ_WRITE"), hashlib.md5(usedforsecurity=False), 0
        sidecar.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = sidecar.with_name(f"{sidecar.stem[:16]}-{uuid4().hex}.data")
        try:
            with path.open("xb") as file:
                while chunk := content.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    size += file.write(chunk)
            with self._changing:
                current, now = _parsed(sidecar), int(time.time() * 1000)
                check(current)
                created = current.created_at if current else now
                kept = StoredFile(url, content_type, digest.hexdigest(), size, created, now, author, path)
                draft = path.with_suffix(".draft")
                draft.write_text(json.dumps(asdict(kept) | {"path": path.name}), encoding="utf-8")
                draft.replace(sidecar)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        if current:
            current.path.unlink(missing_ok=True)
        return kept

    def delete(self, caller: Principal, url: str, check: Check) -> bool:
        """Delete if `check` agrees; False when there is nothing."""
        sidecar = self._sidecar(caller, url, "READ_WRITE")
        with self._changing:
            current = _parsed(sidecar)
            if current is None:
                return False
            check(current)
            sidecar.unlink(missing_ok=True)
            current.path.unlink(missing_ok=True)
            return True

    def open(self, caller: Principal, url: str) -> tuple[StoredFile, BinaryIO] | None:
        """What is stored under `url` with its content, opened; it stays readable whatever happens to the file."""
        with self._changing:
            stored = self.read(caller, url)
            content = stored and _opened(stored.path)
            return (stored, content) if stored and content else None

    def read(self, caller: Principal, url: str) -> StoredFile | None:
        """What is stored under `url`; its `path` lasts until the file is replaced or deleted."""
        return _parsed(self._sidecar(caller, url, "READ"))

    def list(self, caller: Principal, url: str) -> list[StoredFile]:
        """Every file below the folder, at any depth, in the order of their paths."""
        folder = parse(url)
        self._access.require(caller, folder, "READ")
        found = (_parsed(sidecar) for sidecar in self._bucket_folder(folder).glob("*.json"))
        files = {parse(stored.url).path: stored for stored in found if stored is not None}
        return [files[path] for path in sorted(files) if path.startswith(folder.path)]

    def _bucket_folder(self, resource: FileUrl) -> Path:
        folder = self._root / resource.kind / resource.bucket
        if folder.resolve() != folder:
            raise PermissionError(f"the folder of bucket {resource.bucket} is a symbolic link")
        return folder

    def _sidecar(self, caller: Principal, url: str, wanted: Access) -> Path:
        resource = parse(url)
        self._access.require(caller, resource, wanted)
        return self._bucket_folder(resource) / f"{hashlib.sha256(resource.path.encode()).hexdigest()}.json"


def _parsed(sidecar: Path) -> StoredFile | None:
    file = _opened(sidecar)
    if file is None:
        return None
    with file:
        values: dict[str, Any] = json.load(file)
    path = sidecar.with_name(values.pop("path"))
    return StoredFile(**values, path=path)


def _opened(path: Path) -> BinaryIO | None:
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
    except OSError:
        if path.is_symlink() or not path.exists():
            return None
        raise
