"""What the system does with an open folder: resolve a path that cannot lead out of it, and replace a file in it."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from contextlib import suppress
from secrets import token_hex

from task.errors import ToolError

PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
_OPENAT2 = 437
_BENEATH_WITHOUT_MAGIC_LINKS = 0x08 | 0x02
_LIBC = ctypes.CDLL(None, use_errno=True)


def replace(folder: int, name: str, content: bytes) -> None:
    """Make or replace a regular file of an open folder in one step; an old one's mode and owner are kept.

    Raises:
        ToolError, OSError: it cannot be written; nothing has changed.
    """
    old = _status(folder, name)
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


def _status(folder: int, name: str) -> os.stat_result | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise ToolError("not a regular file")
    # A new file would take the place of one that may not be written.
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(errno.EACCES, "permission denied")
    return found


def openat2(folder: int, path: bytes, flags: int) -> int:
    """Open what is at a path below an open folder; Linux follows links on the way, but none that leads out.

    Raises:
        OSError: as `os.open`; EXDEV if the path leads out, EAGAIN if it has to be tried again.
    """
    how = struct.pack("QQQ", flags, 0, _BENEATH_WITHOUT_MAGIC_LINKS)
    opened = _LIBC.syscall(_OPENAT2, folder, path, how, ctypes.c_size_t(len(how)))
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return opened


def can_resolve(root: int) -> bool:
    """Whether `openat2` works here, and it can be seen where a link has led."""
    # Containers may forbid the call; without /proc nobody could say where a link has led.
    if not sys.platform.startswith("linux"):
        return False
    try:
        os.close(openat2(root, b".", PATH_ONLY))
        os.readlink(f"/proc/self/fd/{root}")
    except OSError:
        return False
    return True
