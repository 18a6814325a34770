"""The folder of one running server, and what is left of servers that were killed."""

import fcntl
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from mcp_servers.sandbox.leftovers import empty

PREFIX = "dial-py-"
LONGEST = 60  # a socket's path may have about 100 bytes, and ends in "/0123456789ab/run/k-1"


@contextmanager
def runtime_folder(parent: Path | None) -> Generator[Path]:
    """A new folder for kernels, locked while it is used; leftovers of dead servers beside it are deleted.

    Other users may pass through it, not look into it.
    """
    base = parent or Path(tempfile.gettempdir())
    if len(str(base)) > LONGEST:
        base = Path("/tmp")  # noqa: S108 - the new folder in it has a random name and is our own
    base.mkdir(parents=True, exist_ok=True)
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    lock = _locked(folder)
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        _delete(folder)
        if lock is not None:
            os.close(lock)


def _sweep(base: Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            continue
        lock = _locked(folder)
        if lock is not None:
            _delete(folder)
            os.close(lock)


def _delete(folder: Path) -> None:
    with suppress(OSError):
        empty(str(folder))
        folder.rmdir()


def _locked(folder: Path) -> int | None:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
