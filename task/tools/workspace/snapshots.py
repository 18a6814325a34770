"""Snapshots of a folder: what is at each path, found without following a link, and each content once, by its digest."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import time
import zlib
from collections.abc import Generator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from uuid import uuid4

from task.errors import InvalidRequest
from task.tools.workspace.git import git_folders

# Folders that tools make again. Of these only the existence is kept, so undo removes those that a run has made.
IGNORED = frozenset(
    {"node_modules", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", ".nox"}
)
DEEPEST = 200
RACY_NS = 2_000_000_000  # a file that changed this shortly before a snapshot may have changed again unnoticed
TOO_MUCH = (
    "{} holds more than {:,} files and folders or {:,} MB, which is more than undo can keep. Run in a folder below it, "
    "or move what the task does not need out of it."
)

Kind = Literal["file", "link", "folder", "ignored", "opaque", "special"]
_INDEX = struct.Struct(">4sLL")
_KINDS: Mapping[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class SnapshotError(InvalidRequest):
    """The tree cannot be kept; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree. `content` is a file's digest or a link's target; of what cannot be kept (`opaque`: too large,
    too deep or unreadable) a word on why, with its `stamp`, which shows that it has not changed."""

    kind: Kind
    mode: int
    content: str = ""
    stamp: tuple[int, ...] = field(default=(), compare=False)

    @property
    def changed_ns(self) -> int:
        """When it was changed last, by the file system's clock."""
        return self.stamp[0]

    @property
    def size(self) -> int:
        return self.stamp[-1]

    def opaque(self, why: str) -> Entry:
        """The same path as something that cannot be kept."""
        return replace(self, kind="opaque", content=f"{why}: {self.stamp}")


Pair = tuple[Entry | None, Entry | None]  # what was at a path, and what is there


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tree at one time. `id` is equal for equal trees; paths are relative, undecodable bytes of names are kept as
    lone surrogates; `taken_ns` is when the snapshot began, `changed_ns` when its top folder was changed."""

    id: str
    entries: Mapping[str, Entry]
    taken_ns: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The snapshots of one workspace in `folder`; `earlier` folders lend the contents that they have already.

    `without` is a folder left out of the tree: the product's own, where it lies inside. A snapshot holds at most `most`
    paths and `total` bytes; a file above `largest` bytes is noticed when it changes, but not kept. The methods block.
    """

    workspace: Path
    folder: Path
    earlier: Sequence[Path] = ()
    without: Path | None = None
    most: int = 200_000
    total: int = 1 << 30
    largest: int = 64 << 20

    def take(self, since: Snapshot | None = None, *, keeps: bool = True) -> Snapshot:
        """The tree of this moment; what has not changed `since` is not read again.

        Without `keeps` it may be of any size, and neither it nor its contents are kept.

        Raises:
            SnapshotError: there is too much in it, or it cannot be read or written down.
        """
        began, entries, total = time.time_ns(), dict[str, Entry](), 0
        try:
            self.place("").mkdir(mode=0o700, parents=True, exist_ok=True)
            changed_ns = self.workspace.stat().st_ctime_ns
            # Of a repository that was one before the run no command takes an object away.
            if since is None:
                unread = {f"{folder.relative_to(self.workspace)}/objects" for folder in git_folders(self.workspace)}
            else:
                unread = {path for path, entry in since.entries.items() if entry.kind == "ignored"}
            for path, folder, found in walked(self.workspace, self.without, unread=unread):
                is_file = found.kind == "file"
                total += found.size if is_file and found.size <= self.largest else 0
                if keeps and (len(entries) >= self.most or total > self.total):
                    raise SnapshotError(TOO_MUCH.format(self.workspace, self.most, self.total >> 20))
                entries[path] = self._digested(path, folder, found, since, keeps=keeps) if is_file else found
            tree = Snapshot("", entries, began, changed_ns)
            return self.keep(tree) if keeps else tree
        except OSError as error:
            raise SnapshotError(f"A snapshot of {self.workspace} cannot be kept: {error.strerror}.") from error

    def keep(self, tree: Snapshot) -> Snapshot:
        """Keep a tree whose contents are kept already, under the id that is the digest of its entries."""
        # Not orjson: it refuses the lone surrogates of names that are not UTF-8.
        rows = [[path, item.kind, item.mode, item.content, *item.stamp] for path, item in sorted(tree.entries.items())]
        tree_id = hashlib.sha256(json.dumps([row[:4] for row in rows]).encode()).hexdigest()
        packed = zlib.compress(json.dumps([tree.taken_ns, tree.changed_ns, rows]).encode(), 1)
        self._write(tree_id, packed)
        return replace(tree, id=tree_id)

    def load(self, tree: str) -> Snapshot:
        """A snapshot that was taken before.

        Raises:
            SnapshotError: it is gone.
        """
        try:
            taken_ns, changed_ns, rows = json.loads(zlib.decompress(self.place(tree).read_bytes()))
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
        """Where a content or a tree is kept."""
        return self.folder / "contents" / digest

    def _digested(self, path: str, folder: int, found: Entry, since: Snapshot | None, *, keeps: bool) -> Entry:
        if since is not None and found.changed_ns < since.taken_ns - RACY_NS:
            before = since.entries.get(path, found)  # what is found has no content yet
            same = before.content and (before.kind, before.stamp) == ("file", found.stamp)
            if same and (not keeps or self._has(before.content)):
                return before
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(path.rpartition("/")[2], flags, dir_fd=folder)
        except OSError:  # also where it was removed since: the next snapshot shows that
            return found.opaque("unreadable")
        with open(handle, "rb") as file:
            is_file = found.size <= self.largest and stat.S_ISREG(os.fstat(handle).st_mode)
            content = file.read(self.largest + 1) if is_file else b""
        if max(found.size, len(content)) > self.largest:  # it may have grown since
            return found.opaque("too large")
        digest = hashlib.sha256(content).hexdigest()
        if f"/{path}".endswith("/.git/index") and (named := _indexed(content)) is not None:
            digest = f"index-{hashlib.sha256(named).hexdigest()}"
        if keeps and not self._has(digest):
            self._write(digest, content)
        return replace(found, content=digest)

    def _has(self, digest: str) -> bool:
        place = self.place(digest)
        if place.exists():
            return True
        for folder in self.earlier:
            with suppress(OSError):
                os.link(folder / "contents" / digest, place)
                return True
        return False

    def _write(self, digest: str, content: bytes) -> None:
        # Written beside and renamed: a process that is killed meanwhile leaves no partial content under its digest.
        place = self.place(digest)
        beside = place.with_name(f".{uuid4().hex}")
        try:
            with open(beside, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)
            beside.replace(place)
        except OSError:
            beside.unlink(missing_ok=True)
            raise


def walked(
    workspace: Path, without: Path | None = None, ignored: Set[str] = IGNORED, unread: Set[str] = frozenset()
) -> Generator[tuple[str, int, Entry]]:
    """All paths below `workspace` but those in `without` and in folders of `ignored` names or `unread` paths, each with
    the open folder it is in and what is there; files without their content."""
    skipped = without.stat() if without is not None and without.exists() else None
    for folder, folders, others, handle in os.fwalk(workspace):  # it follows no link, whenever one is put in place
        inside, names = folder[len(str(workspace)) :].lstrip("/"), sorted([*folders, *others])
        folders.clear()
        for name in names:
            try:
                state = os.lstat(name, dir_fd=handle)
                kind = _KINDS.get(stat.S_IFMT(state.st_mode), "special")
                content = os.readlink(name, dir_fd=handle) if kind == "link" else ""
            except FileNotFoundError:  # it was removed since
                continue
            if skipped is not None and os.path.samestat(state, skipped):
                continue
            path = f"{inside}/{name}" if inside else name
            mode = {"link": 0, "special": state.st_mode}.get(kind, stat.S_IMODE(state.st_mode))
            stamp = (state.st_ctime_ns, state.st_mtime_ns, state.st_ino, state.st_size)
            entry = Entry(kind, mode, content, stamp)
            if kind == "folder":
                if name in ignored or path in unread:
                    entry = Entry("ignored", 0, stamp=stamp)
                elif path.count("/") >= DEEPEST:
                    entry = entry.opaque("too deep")
                elif not os.access(name, os.R_OK | os.X_OK, dir_fd=handle):
                    entry = entry.opaque("unreadable")
                else:
                    folders.append(name)
            yield path, handle, entry


def changed(before: Snapshot, after: Snapshot) -> dict[str, Pair]:
    """The paths at which the two differ, in order, with what was there and what is there."""
    paths = sorted({*before.entries, *after.entries})
    pairs = ((path, before.entries.get(path), after.entries.get(path)) for path in paths)
    return {path: (one, other) for path, one, other in pairs if one != other}


def _indexed(index: bytes) -> bytearray | None:
    # What Git's index names, without the times that `git status` alone writes into it; None where it has another form.
    # Source: Git, index-format: 40 bytes of times, owner and size around the mode, 20 of the digest, 2 of flags, name.
    found, place = bytearray(), _INDEX.size
    with suppress(IndexError, struct.error):
        sign, version, count = _INDEX.unpack_from(index)
        for _ in range(count):
            end = place + 62 + (int.from_bytes(index[place + 60 : place + 62]) & 0xFFF)
            if index[end]:
                return None
            found += index[place + 24 : place + 28] + index[place + 40 : end + 1]
            place += (end - place + 8) // 8 * 8
        if (sign, version) == (b"DIRC", 2) and index[place : place + 4] != b"link":  # which has the rest elsewhere
            return found
    return None
