"""A folder for the temporary files of commands: removed at the end, or by the next one where the end never came."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from time import time

from task.utils.folders import delete

PREFIX = "dial-agent-run-"
HOME, TEMPORARY = "home", "temporary"
_NEW_SECONDS = 60.0  # younger ones may not have their lock yet
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """A new folder with a home and a place for temporary files in it, locked as long as it is used."""

    def __init__(self) -> None:
        _sweep(Path(gettempdir()))
        self.path = Path(mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path, _FOLDER)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.home, self.temporary = (self.path / name for name in (HOME, TEMPORARY))
        for folder in (self.home, self.temporary):
            folder.mkdir()

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        with suppress(OSError):
            delete(self.path)
        os.close(self._lock)


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that were killed: those that are ours, not new, and that nobody has locked."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder, _FOLDER)
            try:
                found = os.fstat(lock)
                if found.st_uid == os.geteuid() and time() - found.st_mtime > _NEW_SECONDS:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    delete(folder)
            finally:
                os.close(lock)
