"""Snapshots of a folder's tree: each content is kept once, under its digest, in a folder outside the tree."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from task.coding.tree import Entry, is_index, opaque, walked
from task.errors import InvalidRequest

RACY_NS = 2_000_000_000  # a file that changed this shortly before a snapshot may have changed again unnoticed
TOO_MUCH = (
    "{} holds more than {}, which is more than undo can keep. Run in a folder below it, or move what the task does not "
    "need out of it."
)


class SnapshotError(InvalidRequest):
    """The tree cannot be kept; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """How much a snapshot may hold. A file above `largest` bytes is noticed when it changes, but not kept."""

    entries: int = 200_000
    total: int = 1 << 30
    largest: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tree at one time. `id` is equal for equal trees; paths are relative, undecodable bytes of names are kept as
    lone surrogates; `taken_ns` is when the snapshot began, `changed_ns` when its top folder was changed."""

    id: str
    entries: Mapping[str, Entry]
    taken_ns: int
    changed_ns: int


class Snapshots:
    """The snapshots of one workspace in `folder`; `earlier` folders lend the contents that they have already.

    `without` is a folder left out of the tree: the product's own, where it lies inside. The methods block.
    """

    def __init__(
        self,
        workspace: Path,
        folder: Path,
        earlier: Sequence[Path] = (),
        *,
        limits: SnapshotLimits | None = None,
        without: Path | None = None,
    ) -> None:
        self.workspace, self.folder, self._earlier = workspace, folder, earlier
        self._limits, self._without = limits or SnapshotLimits(), without

    def take(self, since: Snapshot | None = None) -> Snapshot:
        """Keep the tree of this moment; what has not changed `since` is not read again.

        Raises:
            SnapshotError: there is too much in it, or it cannot be written down.
        """
        try:
            return self.keep(self._scanned(since, self._limits, kept=True))
        except OSError as error:
            raise SnapshotError(f"A snapshot of {self.workspace} cannot be kept: {error.strerror}.") from error

    def look(self, since: Snapshot) -> Snapshot:
        """The tree of this moment, however large; its contents are not kept.

        Raises:
            SnapshotError: it cannot be read.
        """
        try:
            everything = SnapshotLimits(sys.maxsize, sys.maxsize, self._limits.largest)
            return self._scanned(since, everything, kept=False)
        except OSError as error:
            raise SnapshotError(f"{self.workspace} cannot be read: {error.strerror}.") from error

    def keep(self, tree: Snapshot) -> Snapshot:
        """Keep a tree whose contents are kept already, under the id that is the digest of its entries."""
        lines = [(path, item.kind, item.mode, item.content) for path, item in sorted(tree.entries.items())]
        snapshot = replace(tree, id=hashlib.sha256(json.dumps(lines).encode()).hexdigest())
        # Not orjson: it refuses the lone surrogates of names that are not UTF-8.
        rows = [[path, item.kind, item.mode, item.content, *item.stamp] for path, item in tree.entries.items()]
        packed = zlib.compress(json.dumps([tree.taken_ns, tree.changed_ns, rows]).encode(), 1)
        self._write("trees", snapshot.id, packed)
        return snapshot

    def load(self, tree: str) -> Snapshot:
        """A snapshot that was taken before.

        Raises:
            SnapshotError: it is gone.
        """
        try:
            packed = (self.folder / "trees" / tree).read_bytes()
            taken_ns, changed_ns, rows = json.loads(zlib.decompress(packed))
        except (OSError, ValueError, zlib.error) as error:
            raise SnapshotError(f"The snapshot {tree[:12]} is gone or damaged; it cannot be used.") from error
        entries = {path: Entry(kind, mode, content, tuple(stamp)) for path, kind, mode, content, *stamp in rows}
        return Snapshot(tree, entries, taken_ns, changed_ns)

    def content(self, entry: Entry) -> bytes:
        """The content of a file that was kept.

        Raises:
            SnapshotError: it is gone.
        """
        try:
            return self.place(entry.content).read_bytes()
        except OSError as error:
            raise SnapshotError(f"The content {entry.content[:12]} is gone; it cannot be used.") from error

    def place(self, digest: str) -> Path:
        """Where a content is kept."""
        return self.folder / "contents" / digest[:2] / digest

    def _scanned(self, since: Snapshot | None, limits: SnapshotLimits, *, kept: bool) -> Snapshot:
        began, changed_ns = time.time_ns(), self.workspace.stat().st_ctime_ns
        entries, total = dict[str, Entry](), 0
        for path, folder, found in walked(self.workspace, self._without):
            entries[path] = found
            if len(entries) > limits.entries:
                raise SnapshotError(TOO_MUCH.format(self.workspace, f"{limits.entries:,} files and folders"))
            if found.kind != "file":
                continue
            if found.size > limits.largest:
                entries[path] = opaque(found, "too large")
                continue
            total += found.size
            if total > limits.total:
                raise SnapshotError(TOO_MUCH.format(self.workspace, f"{limits.total >> 20:,} MB"))
            keeps = kept or is_index(path)
            entries[path] = self._unchanged(path, found, since, keeps) or self._read(folder, path, found, keeps)
        return Snapshot("", entries, began, changed_ns)

    def _unchanged(self, path: str, found: Entry, since: Snapshot | None, kept: bool) -> Entry | None:
        before = since.entries.get(path) if since is not None else None
        if since is None or before is None or before.kind != "file" or before.stamp != found.stamp:
            return None
        if found.changed_ns >= since.taken_ns - RACY_NS or (kept and not self._has(before.content)):
            return None
        return replace(found, content=before.content)

    def _has(self, digest: str) -> bool:
        place = self.place(digest)
        if place.exists():
            return True
        for folder in self._earlier:
            with suppress(OSError):
                make_private(place.parent)
                os.link(folder / "contents" / digest[:2] / digest, place)
                return True
        return False

    def _read(self, folder: int, path: str, found: Entry, kept: bool) -> Entry:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(path.rpartition("/")[2], flags, dir_fd=folder)
        except OSError:  # also where it was removed since: the next snapshot shows that
            return opaque(found, "unreadable")
        with open(handle, "rb") as file:
            content = file.read(self._limits.largest + 1) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
        if len(content) > self._limits.largest:  # it has grown since
            return opaque(found, "too large")
        digest = hashlib.sha256(content).hexdigest()
        if kept and not self._has(digest):
            self._write(f"contents/{digest[:2]}", digest, content)
        return replace(found, content=digest)

    def _write(self, folder: str, name: str, content: bytes) -> None:
        # Written beside and renamed: a process that is killed meanwhile leaves no partial content under its digest.
        place = self.folder / folder
        make_private(place)
        beside = place / f".{uuid4().hex}"
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                file.write(content)
            beside.replace(place / name)
        except OSError:
            beside.unlink(missing_ok=True)
            raise


def changed(before: Snapshot, after: Snapshot) -> dict[str, tuple[Entry | None, Entry | None]]:
    """The paths at which the two differ, in order, with what was there and what is there."""
    paths = sorted({*before.entries, *after.entries})
    pairs = ((path, before.entries.get(path), after.entries.get(path)) for path in paths)
    return {path: (one, other) for path, one, other in pairs if one != other}


def make_private(folder: Path) -> None:
    """Make the folder, with those above it, for this account only."""
    for part in (*reversed(folder.parents), folder):
        if not part.exists():
            part.mkdir(mode=0o700, exist_ok=True)
