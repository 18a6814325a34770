"""Lend each kernel a user id of its own, which no other kernel on this machine has or had lately."""

import fcntl
import os
import stat
import struct
import tempfile
from contextlib import suppress

FIRST_UID = 70_001  # the one before is what the sandbox tries itself out with
UIDS = 10_000
# Code in a kernel can neither make files in these folders nor open a file that only root may read.
FOLDERS = ("/run", tempfile.gettempdir())
NAME = "dial-agent-kernel-uids"


class Uids:
    """User ids for kernels, lent in turn.

    A lent one is a locked byte of a file that all servers of the machine share; the lock ends with this process too.
    The file's content is the uid that was lent last.
    """

    def __init__(self) -> None:
        self._file = _opened()
        self._held: set[int] = set()

    def lend(self) -> int:
        """A user id that no kernel on this machine has, the next one after the one that was lent last."""
        last = int(os.pread(self._file, 20, 0) or FIRST_UID - 1)
        for number in range(UIDS):
            uid = FIRST_UID + (last + 1 - FIRST_UID + number) % UIDS
            if self.hold(uid):
                os.pwrite(self._file, str(uid).encode(), 0)
                return uid
        raise RuntimeError("every user id for kernels is taken")

    def hold(self, uid: int) -> bool:
        """Take exactly this user id, if nobody has it."""
        if uid in self._held or not self._lock(fcntl.F_WRLCK, uid):
            return False
        self._held.add(uid)
        return True

    def give_back(self, uid: int) -> None:
        """Only when the id has no processes and no files left."""
        self._lock(fcntl.F_UNLCK, uid)
        self._held.discard(uid)

    def close(self) -> None:
        os.close(self._file)

    def _lock(self, kind: int, uid: int) -> bool:
        # struct flock; the lock belongs to the open file, so that two servers in one process exclude each other too.
        byte = struct.pack("hhqqi4x", kind, os.SEEK_SET, uid, 1, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, byte)
        except BlockingIOError:
            return False
        return True


def _opened() -> int:
    for folder in FOLDERS:
        with suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(os.path.join(folder, NAME), flags, 0o600)
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
                return file
            os.close(file)
    raise RuntimeError(f"the list of user ids can be kept in none of {' and '.join(FOLDERS)}: remove {NAME} there")
