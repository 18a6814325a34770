"""System V objects outside: one for every attack on them, and what became of it."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.ipc import IPC_CREATE, IPC_REMOVE, IPC_STATUS

SEGMENT_BYTES, IPC_SET, GET_VALUE = 4096, 1, 12
# What an attack's name says about the kind of its object.
KINDS = {"segment": "shm", "queue": "msg", "semaphore": "sem"}
EXISTING = (
    "read_segment", "read_shared_segment", "write_segment", "describe_segment", "remove_segment", "read_queue",
    "write_queue", "describe_queue", "find_queue", "remove_queue", "raise_semaphore", "raise_semaphore_in_time",
    "set_semaphore", "find_semaphores", "remove_semaphores",
)  # fmt: skip
LEFT = ("leave_segment", "leave_queue", "leave_semaphores")


@dataclass(frozen=True, slots=True)
class Objects:
    """Ids and keys by attack; `before` is the state that must not change."""

    ids: dict[str, int]
    keys: dict[str, int]
    before: dict[str, bytes]

    @staticmethod
    def make(secret: str, owner: int | None) -> Objects:
        """Objects that everyone may use and that belong to `owner`; None: to this process's user."""
        keys = {name: secrets.randbelow(2**30) + 1 for name in (*EXISTING, *LEFT)}
        ids = {name: _made(_kind(name), keys[name], secret.encode()) for name in EXISTING}
        if owner is not None:
            for name, number in ids.items():
                _give(_kind(name), number, owner)
        return Objects(ids, keys, {name: _state(_kind(name), number) for name, number in ids.items()})

    def changed(self) -> dict[str, str]:
        """The effects, by attack."""
        effects = {name: "changed or removed it" for name in self.ids if self._now(name) != self.before[name]}
        return effects | {name: "it outlived the run" for name in LEFT if _found(_kind(name), self.keys[name])}

    def remove(self) -> None:
        """Remove every object, also those that attacks have left."""
        left = {name: _found(_kind(name), self.keys[name]) for name in LEFT}
        for name, number in (self.ids | {name: found[0] for name, found in left.items() if found}).items():
            with suppress(OSError):
                _control(_kind(name), number, IPC_REMOVE, None)

    def _now(self, name: str) -> bytes:
        try:
            return _state(_kind(name), self.ids[name])
        except OSError:
            return b"gone"


def _kind(name: str) -> str:
    return next(kind for word, kind in KINDS.items() if word in name)


def _made(kind: str, key: int, secret: bytes) -> int:
    flags = IPC_CREATE | 0o666
    match kind:
        case "shm":
            number = _call("shmget", key, ctypes.c_size_t(SEGMENT_BYTES), flags)
            _in_segment(number, lambda address: ctypes.memmove(address, secret, len(secret)))
        case "msg":
            number = _call("msgget", key, flags)
            _call("msgsnd", number, (1).to_bytes(8, "little") + secret, ctypes.c_size_t(len(secret)), 0)
        case _:
            number = _call("semget", key, 1, flags)
    return number


def _give(kind: str, number: int, owner: int) -> None:
    # All three states begin with struct ipc64_perm: the key, then the owner's uid and gid.
    state = ctypes.create_string_buffer(256)
    _control(kind, number, IPC_STATUS, state)
    ctypes.memmove(ctypes.addressof(state) + 4, owner.to_bytes(4, "little") * 2, 8)
    _control(kind, number, IPC_SET, state)


def _state(kind: str, number: int) -> bytes:
    """What attacks would change: the content of memory, the count of messages, the value of a semaphore."""
    match kind:
        case "shm":
            content: list[bytes] = []
            _in_segment(number, lambda address: content.append(ctypes.string_at(address, SEGMENT_BYTES)))
            return content[0]
        case "msg":
            state = ctypes.create_string_buffer(256)
            _control(kind, number, IPC_STATUS, state)
            # struct msqid64_ds: 48 bytes of permissions, three times, bytes, messages.
            return state.raw[72:88]
        case _:
            return str(_call("semctl", number, 0, GET_VALUE, 0)).encode()


def _in_segment(number: int, use: Callable[[int], object]) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.shmat.restype = ctypes.c_void_p
    address = library.shmat(number, None, 0)
    if ctypes.c_long(address or -1).value == -1:
        raise OSError(ctypes.get_errno(), "the segment cannot be attached")
    use(address)
    library.shmdt(ctypes.c_void_p(address))


def _control(kind: str, number: int, command: int, state: object) -> None:
    _call(f"{kind}ctl", number, *((0,) if kind == "sem" else ()), command, state)


def _found(kind: str, key: int) -> list[int]:
    room = {"shm": (ctypes.c_size_t(0), 0), "msg": (0,), "sem": (0, 0)}[kind]
    with suppress(OSError):
        return [_call(f"{kind}get", key, *room)]
    return []


def _call(name: str, *arguments: object) -> int:
    return system_call(numbers(machine())[name], *arguments)
