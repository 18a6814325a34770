"""What is in a folder: all its paths, found without following a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# Folders that tools make again. Of these only the existence is kept, so undo removes those that a run has made.
IGNORED = frozenset(
    {"node_modules", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", ".nox"}
)
DEEPEST = 200
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # it was removed or replaced meanwhile

Kind = Literal["file", "link", "folder", "ignored", "opaque", "special"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree. `content` is a file's digest or a link's target; of what cannot be kept (`opaque`: too large,
    too deep or unreadable) a word on why, with its place and time of change. `stamp` shows that it has not changed."""

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


def walked(
    workspace: Path, without: Path | None = None, ignored: frozenset[str] = IGNORED
) -> Generator[tuple[str, int, Entry]]:
    """All paths below `workspace` but those in `without` and in `ignored` folders, each with the open folder it is in
    and what is there; files without their content."""
    state = without.stat() if without is not None and without.exists() else None
    skipped = (state.st_dev, state.st_ino) if state is not None else None
    top = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        open_folders = [("", Entry("folder", 0))]
        while open_folders:
            path, itself = open_folders.pop()
            try:
                with opened_folder(top, path) as folder:
                    for name, entry in _listed(folder, skipped, ignored):
                        place = f"{path}/{name}" if path else name
                        if entry.kind == "folder" and place.count("/") >= DEEPEST:
                            entry = opaque(entry, "too deep")
                        if entry.kind == "folder":
                            open_folders.append((place, entry))
                        yield place, folder, entry
            except PermissionError:
                if not path:
                    raise
                yield path, top, opaque(itself, "unreadable")
            except OSError as error:
                if not path or error.errno not in GONE:
                    raise
    finally:
        os.close(top)


def _listed(folder: int, skipped: tuple[int, int] | None, ignored: frozenset[str]) -> Generator[tuple[str, Entry]]:
    with os.scandir(folder) as found:
        names = sorted(item.name for item in found)
    # Git adds its objects and never changes one: what undo restores of a repository are the names for them.
    objects = "objects" if {"HEAD", "refs", "objects"} <= set(names) else None
    for name in names:
        with suppress(FileNotFoundError):  # it was removed since
            state = os.lstat(name, dir_fd=folder)
            if (state.st_dev, state.st_ino) == skipped:
                continue
            mode = stat.S_IMODE(state.st_mode)
            stamp = (state.st_ctime_ns, state.st_mtime_ns, state.st_ino, state.st_size)
            match stat.S_IFMT(state.st_mode):
                case stat.S_IFREG:
                    yield name, Entry("file", mode, stamp=stamp)
                case stat.S_IFDIR if name in ignored or name == objects:
                    yield name, Entry("ignored", 0, stamp=stamp)
                case stat.S_IFDIR:
                    yield name, Entry("folder", mode, stamp=stamp)
                case stat.S_IFLNK:
                    yield name, Entry("link", 0, os.readlink(name, dir_fd=folder), stamp)
                case other:
                    yield name, Entry("special", mode, str(other), stamp)


def opaque(entry: Entry, why: str) -> Entry:
    """The same path as something that cannot be kept."""
    changed_ns, _, inode, _ = entry.stamp
    return Entry("opaque", entry.mode, f"{why}: {inode} {changed_ns}", entry.stamp)


@contextmanager
def opened_folder(top: int, path: str, *, create: bool = False) -> Generator[int]:
    """The folder at a path below `top`, followed through no link; with `create` it is made where there is none.

    Raises:
        OSError: there is none, or it cannot be made.
    """
    handle = os.dup(top)
    try:
        for name in filter(None, path.split("/")):
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def is_index(path: str) -> bool:
    """Whether it is Git's index, of which undo compares more than the digest."""
    return f"/{path}".endswith("/.git/index")
