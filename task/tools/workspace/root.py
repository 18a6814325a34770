"""One folder, held open: files in it are reached by paths that cannot lead out of it."""

import asyncio
import errno
import fcntl
import os
import posixpath
import stat
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Self

from task.errors import Conflict, ToolError
from task.tools.workspace.git import check_git

MAX_BYTES = 10 * 2**20
MAX_DEPTH = 100
# Not written by hand: left out of searches.
_IGNORED = """.git .hg .svn .venv venv node_modules __pycache__ .mypy_cache .pytest_cache .ruff_cache .tox .nox
.hypothesis"""
IGNORED = frozenset(_IGNORED.split())

NOT_HERE = "holds the product's own settings"

_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER = _PATH_ONLY | os.O_DIRECTORY
_READING = (
    os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
)  # never waits for a pipe's other end
_LISTING = _READING | os.O_DIRECTORY
_LINK_MET = (errno.ELOOP, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Which files may be read and written, by their endings (None: all) and sizes; nothing of `hidden`, which are
    paths in the workspace."""

    readable: tuple[str, ...] | None = None
    writable: tuple[str, ...] | None = None
    read_bytes: int = MAX_BYTES
    write_bytes: int = MAX_BYTES
    hidden: frozenset[str] = frozenset()

    def check(self, path: str, size: int | None = None) -> None:
        """Refuse to read a path, or to write `size` bytes to it. Raises: ToolError."""
        endings = self.readable if size is None else self.writable
        if path in self.hidden:
            raise ToolError(NOT_HERE)
        if endings is not None and not path.lower().endswith(endings):
            raise ToolError(f"not among the allowed file extensions ({', '.join(endings)})")
        if size is not None and size > self.write_bytes:
            raise ToolError(f"too large ({size:,} bytes, at most {self.write_bytes:,})")


NO_LIMITS = FileLimits()


OCCUPIED = "Another coding run works in {}, or in a folder around or below it. Wait for it, or stop it."


class PathEscape(ToolError, ValueError):
    """A path that leads out of the workspace. Source: seed 003, `_safe_path`."""

    def __init__(self) -> None:
        super().__init__("path escapes sandbox")


class Workspace:
    """A folder whose files are reached by relative paths.

    A path beginning with `/` is either one below the folder's own path or counts from the folder. Symbolic links are
    followed as long as they stay inside: a path is resolved first, and what it then names is opened folder by folder,
    never through a link that was put there meanwhile. Not `rerooted`, a path is normalised as programs read it.
    Tools that change files hold `changes`: the calls of one step take their turns, in their order.

    Raises:
        OSError: there is no such folder, or it cannot be opened.
    """

    def __init__(self, path: Path, *, limits: FileLimits = NO_LIMITS, rerooted: bool = True) -> None:
        self.path = Path(os.path.realpath(path))
        self.limits = limits
        self.rerooted = rerooted
        self._root = os.open(self.path, _FOLDER)
        self.changes = asyncio.Lock()

    def close(self) -> None:
        """Close the folder; the workspace cannot be used any more."""
        os.close(self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def normalised(self, path: str) -> str:
        """The path relative to the workspace with symbolic links resolved, as far as there is anything; `.` is the
        workspace itself.

        Raises:
            PathEscape: it leads out of the workspace.
            ToolError: no file can have this path.
        """
        named = self._relative(path) if self.rerooted else os.path.expanduser(path)
        try:
            own, real = str(self.path), os.path.realpath(self.path / named)
        except ValueError as error:
            raise ToolError("a path has no NUL characters, and no halves of characters") from error
        if real == own:
            return "."
        if not real.startswith(own.rstrip("/") + "/"):
            raise PathEscape
        return real[len(own) :].lstrip("/")

    def read(self, path: str) -> bytes:
        """The content of a regular file of up to 10 MiB, or what the limits say.

        Raises:
            ToolError, OSError: it cannot be read.
        """
        relative, most = self._relative(path), self.limits.read_bytes
        if self.limits is not NO_LIMITS:
            relative = self.normalised(path)
            self.limits.check(relative)
        with self._opened(relative, _READING) as file:
            info = os.fstat(file)
            if stat.S_ISDIR(info.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a directory")
            if not stat.S_ISREG(info.st_mode):
                raise ToolError("not a regular file")
            content = bytearray()
            # One more than the limit: the file may grow while it is read.
            while len(content) <= most and (piece := os.read(file, min(max(info.st_size, 2**16), most) + 1)):
                content += piece
            if len(content) > most:
                raise ToolError(f"too large ({max(info.st_size, len(content)):,} bytes, at most {most:,})")
            return bytes(content)

    saved = read  # what is on the disk, also where an editor has the texts

    def write(self, path: str, content: bytes) -> None:
        """Make or replace a regular file in one step; folders above it are made, an old file's mode is kept.

        Raises:
            ToolError, OSError: it cannot be written; nothing has changed.
        """
        relative = self.normalised(path)
        self.limits.check(relative, len(content))
        names = relative.split("/")
        if relative == ".":
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if len(names) > MAX_DEPTH + 1:
            raise ToolError(f"more than {MAX_DEPTH} folders deep")
        check_git(self.path, names)
        with self.parent(relative, make=True) as (folder, name):
            self._replace(relative, folder, name, content)

    def entries(self, path: str) -> list[str]:
        """The names in a folder, in order; those of folders end in `/`.

        Raises:
            ToolError, OSError: it cannot be listed.
        """
        relative = self._relative(path)
        with self._opened(relative, _LISTING) as folder, os.scandir(folder) as found:
            names = [(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in found]
        listed: list[str] = []
        for name, is_folder, is_link in names:
            if is_link:
                with suppress(OSError, ToolError), self._opened(f"{relative}/{name}", _FOLDER):
                    is_folder = True
            listed.append(f"{name}/" if is_folder else name)
        return sorted(listed)

    def files(self, path: str) -> Iterator[str]:
        """The regular files below a folder in the order of their paths, without `IGNORED` folders; or the file itself.

        Raises:
            ToolError, OSError: there is no such file or folder. What cannot be read below it is left out.
        """
        relative = self.normalised(path)
        with self._opened(relative, _PATH_ONLY) as found:
            if not stat.S_ISDIR(os.fstat(found).st_mode):
                yield relative
                return
        waiting = [relative]
        while waiting:
            here, children = waiting.pop(), list[tuple[str, bool]]()
            with suppress(OSError), self._opened(here, _LISTING) as opened, os.scandir(opened) as found:
                children = [
                    (posixpath.normpath(f"{here}/{entry.name}"), entry.is_dir(follow_symlinks=False))
                    for entry in found
                    if entry.name not in IGNORED and not entry.is_symlink()
                ]
            yield from sorted(path for path, is_folder in children if not is_folder)
            waiting += sorted((path for path, is_folder in children if is_folder), reverse=True)

    def _relative(self, path: str) -> str:
        if "\0" in path:
            raise ToolError("a path has no NUL characters")
        own = str(self.path)
        inside = path[len(own) :] if path == own or path.startswith(f"{own.rstrip('/')}/") else path
        relative = posixpath.normpath(inside.lstrip("/") or ".")
        if relative.split("/", 1)[0] in ("..", "~"):
            raise PathEscape
        try:
            os.fsencode(relative)
        except UnicodeEncodeError as error:
            raise ToolError("a path has no halves of characters") from error
        return relative

    def _replace(self, relative: str, folder: int, name: str, content: bytes) -> None:
        old: os.stat_result | None = None
        with suppress(FileNotFoundError):
            old = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if old is not None:
            if stat.S_ISDIR(old.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a directory")
            if not stat.S_ISREG(old.st_mode):
                raise ToolError("not a regular file")
            # A new file would take the place of one that may not be written.
            if not os.access(name, os.W_OK, dir_fd=folder):
                raise PermissionError(errno.EACCES, "permission denied")
        self._put(relative, content, folder, name, old)

    def _put(self, relative: str, content: bytes, folder: int, name: str, old: os.stat_result | None) -> None:
        temporary = f".{token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        made = os.open(temporary, flags, 0o666 if old is None else 0o600, dir_fd=folder)
        try:
            with os.fdopen(made, "wb") as file:
                file.write(content)
                if old is not None:
                    with suppress(OSError):  # not permitted, or an owner that a container does not know
                        os.fchown(made, old.st_uid, old.st_gid)
                    os.fchmod(made, old.st_mode & 0o777)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise

    @contextmanager
    def _opened(self, relative: str, flags: int) -> Generator[int]:
        try:
            opened = self._open(relative, flags)
        except OSError as error:
            real = self.normalised(relative) if error.errno in _LINK_MET else relative
            if real == relative:
                raise
            opened = self._open(real, flags)
        try:
            yield opened
        finally:
            os.close(opened)

    def _open(self, relative: str, flags: int) -> int:
        with self.parent(relative) as (folder, name):
            return os.open(name, flags, dir_fd=folder)

    @contextmanager
    def parent(self, relative: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """The folder of a path, opened component by component and never through a symbolic link, and the name in it.

        Raises:
            OSError: a folder is missing and not to be made, or something else is in its place.
        """
        *above, name = relative.split("/")
        current = os.dup(self._root)
        try:
            for part in above:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=current)
                below = os.open(part, _FOLDER, dir_fd=current)
                os.close(current)
                current = below
            yield current, name
        finally:
            os.close(current)


@contextmanager
def held_alone(workspace: Path) -> Generator[None]:
    """Keep other tasks out of the folder, of those around it and of those in it; a killed process holds nothing.

    Raises:
        Conflict: another task works there.
    """
    with ExitStack() as stack:
        for place in (*reversed(workspace.parents), workspace):
            lock = fcntl.LOCK_EX if place == workspace else fcntl.LOCK_SH
            try:
                handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, handle)
                fcntl.flock(handle, lock | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(OCCUPIED.format(workspace)) from None
            except OSError:
                pass  # a folder above may be closed, and some network file systems cannot lock a folder
        yield
