"""Files of a kernel's working directory, read and written without following anything its code may have laid there."""

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from mcp_servers.python_interpreter.places import KernelFolders

DEPTH = 64  # each level keeps a folder open
SKIPPED = frozenset({"__pycache__"})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NoSuchFile(Exception):
    """The name leads to nothing that may be read."""


class _TooDeep(Exception): ...


@dataclass(frozen=True, slots=True)
class Stamp:
    """What identifies one state of a file; `size` in bytes."""

    size: int
    changed: int
    inode: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The regular files below a folder by relative path; `complete` is False when they are too many, or too deep.

    `size` is what all of them take together, in bytes; `nameless` how many more have a name that is not UTF-8.
    """

    files: Mapping[str, Stamp]
    size: int
    complete: bool
    nameless: int = 0

    def since(self, before: Self) -> list[str]:
        """The files that are new or changed, oldest change first."""
        new = [path for path, stamp in self.files.items() if before.files.get(path) != stamp]
        return sorted(new, key=lambda path: (self.files[path].changed, path))


def snapshot(root: Path, entries: int) -> Snapshot:
    """The contents of `root`; `files` leaves out hidden names, names that are not UTF-8, and all but plain files."""
    files: dict[str, Stamp] = {}
    seen = size = nameless = 0
    try:
        top = os.open(root, _FOLDER)
    except OSError:
        return Snapshot({}, 0, True)
    try:
        for path, found, hidden in _walk(top, "", DEPTH):
            seen += 1
            if seen > entries:
                return Snapshot(files, size, False, nameless)
            if stat.S_ISREG(found.st_mode):
                size += found.st_blocks * 512
                if found.st_nlink == 1 and not hidden and _is_text(path):
                    files[path] = Stamp(found.st_size, found.st_mtime_ns, found.st_ino)
                else:
                    nameless += not _is_text(path)
    except _TooDeep:
        return Snapshot(files, size, False, nameless)
    finally:
        os.close(top)
    return Snapshot(files, size, True, nameless)


def _walk(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result, bool]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            path, hidden = f"{prefix}{entry.name}", entry.name.startswith(".") or entry.name in SKIPPED
            yield path, found, hidden
            if stat.S_ISDIR(found.st_mode):
                if not depth:
                    raise _TooDeep
                try:
                    inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                except OSError:
                    continue
                try:
                    for below, its, out_of_sight in _walk(inner, f"{path}/", depth - 1):
                        yield below, its, hidden or out_of_sight
                finally:
                    os.close(inner)


def _is_text(path: str) -> bool:
    # Python reads bytes that are not UTF-8 as halves of letters, which no answer can hold.
    return path.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in path)


def open_file(root: Path, path: str) -> int:
    """The file at `path` below `root`, open for reading; never anything but a regular file with one name.

    Raises:
        NoSuchFile: there is none.
    """
    parts = PurePosixPath(path).parts
    if not parts or any(part in ("..", "/", ".") for part in parts) or "\0" in path:
        raise NoSuchFile(path)
    try:
        descriptor = os.open(root, _FOLDER)
        for part, flags in [*((part, _FOLDER) for part in parts[:-1]), (parts[-1], _FILE)]:
            outer = descriptor
            try:
                descriptor = os.open(part, flags, dir_fd=outer)
            finally:
                os.close(outer)
    except OSError as error:
        raise NoSuchFile(path) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise NoSuchFile(path)
    return descriptor


def read_file(root: Path, path: str, most: int) -> bytes:
    """The first `most` bytes of the file.

    Raises:
        NoSuchFile: there is none.
    """
    with open(open_file(root, path), "rb") as file:
        return file.read(most)


class NewFile:
    """A file on its way into the working directory; it appears whole, under its name, or not at all.

    Folders of `path` are created.
    """

    def __init__(self, place: KernelFolders, path: str) -> None:
        *self._folders, self._name = path.split("/")
        self._place = place
        self._unfinished = f".{secrets.token_hex(8)}.part"

    def __enter__(self) -> Self:
        self._folder = os.open(self._place.work, _FOLDER)
        try:
            for name in self._folders:
                self._enter(name)
            return self._begun()
        except BaseException:
            os.close(self._folder)
            raise

    def _enter(self, name: str) -> None:
        outer, new = self._folder, True
        try:
            os.mkdir(name, 0o700, dir_fd=outer)
        except FileExistsError:
            new = False
        self._folder = os.open(name, _FOLDER, dir_fd=outer)
        os.close(outer)
        if new:
            self._place.give(self._folder)

    def _begun(self) -> Self:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._unfinished, flags, 0o600, dir_fd=self._folder)
        return self

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def finish(self) -> None:
        """Give the file to the kernel and its name to the file.

        Raises:
            OSError: a folder has that name.
        """
        self._place.give(self._file)
        os.replace(self._unfinished, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        with suppress(OSError):  # it has its name
            os.unlink(self._unfinished, dir_fd=self._folder)
        os.close(self._folder)
