"""Find and delete what a uid has left where every user may write: files, System V objects, keys."""

import ctypes
import os
import stat
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers

SHARED_FOLDERS = ("/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp")  # noqa: S108
SHARED_OBJECTS = ("shm", "msg", "sem")
IPC_REMOVE = 0
KEYS_CLEAR, KEYRING_OF_USER = 7, -4
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def owners() -> set[int]:
    """The uids that own anything in the shared folders or any System V object."""
    files = {found.st_uid for folder in SHARED_FOLDERS for _, found in _entries(folder)}
    return files | {creator for kind in SHARED_OBJECTS for _, creator in _objects(kind)}


def delete(folders: Iterable[str]) -> None:
    """Delete all that this process's user has in shared places, and the contents of the folders.

    Raises:
        OSError: something could not be deleted.
    """
    uid = os.getuid()
    for folder in folders:
        with suppress(FileNotFoundError):
            empty(folder)
    own = [path for folder in SHARED_FOLDERS for path, found in _entries(folder) if found.st_uid == uid]
    for path in own:
        with suppress(FileNotFoundError):
            try:
                os.unlink(path)
            except IsADirectoryError:
                empty(path)
                os.rmdir(path)
    for kind in SHARED_OBJECTS:
        for number in [number for number, creator in _objects(kind) if creator == uid]:
            _remove_object(kind, number)
    with suppress(OSError):
        system_call(numbers(machine())["keyctl"], KEYS_CLEAR, KEYRING_OF_USER, 0, 0, 0)


def empty(folder: str) -> None:
    """Delete everything in the folder, whatever its depth, names and modes; no link is followed.

    Raises:
        OSError: something could not be deleted.
    """
    _allow(folder)
    with _opened(folder) as top:
        while names := os.listdir(top):
            for name in names:
                _remove(top, name)


def _entries(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """What is in the folder and in those below it that everyone may write to."""
    try:
        inside = list(os.scandir(folder))
    except OSError:
        return
    for entry in inside:
        with suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            yield entry.path, found
            if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH:
                yield from _entries(entry.path)


def _objects(kind: str) -> list[tuple[int, int]]:
    """Ids and creators' uids; an owner can be changed, the creator cannot."""
    try:
        # As bytes: the uid may be unable to read the codec's module, which Python loads at its first use.
        with open(f"/proc/sysvipc/{kind}", "rb") as listing:
            rows = [line.split() for line in listing]
    except OSError:
        return []
    creator = rows[0].index(b"cuid")
    return [(int(row[1]), int(row[creator])) for row in rows[1:]]


def _remove_object(kind: str, number: int) -> None:
    arguments = (0, IPC_REMOVE, 0) if kind == "sem" else (IPC_REMOVE, None)
    system_call(numbers(machine())[f"{kind}ctl"], ctypes.c_int(number), *arguments)


@contextmanager
def _opened(folder: str, parent: int | None = None) -> Generator[int]:
    number = os.open(folder, _FOLDER, dir_fd=parent)
    try:
        yield number
    finally:
        os.close(number)


def _remove(folder: int, name: str) -> None:
    """Delete one entry; folders in it come up to its own level, so that no path is too long and nothing recurses."""
    with suppress(IsADirectoryError, FileNotFoundError):
        os.unlink(name, dir_fd=folder)
        return
    with suppress(OSError):
        os.rmdir(name, dir_fd=folder)
        return
    _allow(name, folder)
    with _opened(name, folder) as inner:
        for child in os.listdir(inner):
            try:
                os.unlink(child, dir_fd=inner)
            except IsADirectoryError:
                _allow(child, inner)
                os.rename(child, os.urandom(12).hex(), src_dir_fd=inner, dst_dir_fd=folder)
    os.rmdir(name, dir_fd=folder)


def _allow(folder: str, parent: int | None = None) -> None:
    with suppress(PermissionError):  # it belongs to another user, but may be open to this one
        os.chmod(folder, 0o700, dir_fd=parent)
