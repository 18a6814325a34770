"""Lend each kernel a user id of its own, never the same one twice on this machine."""

from __future__ import annotations

import errno
import socket

FIRST_UID = 70_001  # the one before is what the sandbox tries itself out with
UIDS = 10_000


class Uids:
    """User ids for kernels. A lent one is held by an abstract socket, which also ends with this process."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def lend(self) -> int:
        """A user id that no kernel on this machine has."""
        for uid in range(FIRST_UID, FIRST_UID + UIDS):
            if uid not in self._held and self._hold(uid):
                return uid
        raise RuntimeError("every user id for kernels is taken")

    def give_back(self, uid: int) -> None:
        """Only when the id has no processes and no files left."""
        self._held.pop(uid).close()

    def _hold(self, uid: int) -> bool:
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0dial-agent-kernel-{uid}")
        except OSError as error:
            holder.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self._held[uid] = holder
        return True
