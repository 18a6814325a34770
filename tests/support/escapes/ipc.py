"""Attacks on System V and POSIX IPC: every call alone, with the ids and names of objects outside."""

import ctypes
import os
from collections.abc import Callable

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.world import GOT_IT, World

IPC_CREATE, IPC_REMOVE, IPC_STATUS, NO_WAIT = 0o1000, 0, 2, 0o4000
SET_VALUE, READ_ONLY = 16, 0o10000
TEXT_BYTES, LEFT_BYTES = 32, 4096


def read_segment(world: World) -> str:
    """attach and read a neighbour's System V shared memory"""
    return ctypes.string_at(_attached(world.objects["read_segment"], READ_ONLY), TEXT_BYTES).decode(errors="replace")


def read_shared_segment(world: World) -> str:
    """find System V shared memory by its key, and read it"""
    segment = _call("shmget", world.keys["read_shared_segment"], ctypes.c_size_t(0), 0)
    return ctypes.string_at(_attached(segment, READ_ONLY), TEXT_BYTES).decode(errors="replace")


def write_segment(world: World) -> str:
    """change a neighbour's System V shared memory"""
    ctypes.memmove(_attached(world.objects["write_segment"], 0), b"escaped", 7)
    return ""


def describe_segment(world: World) -> str:
    """ask for the state of a neighbour's System V shared memory"""
    return _got("shmctl", world.objects["describe_segment"], IPC_STATUS, ctypes.create_string_buffer(256))


def remove_segment(world: World) -> str:
    """remove a neighbour's System V shared memory"""
    _call("shmctl", world.objects["remove_segment"], IPC_REMOVE, None)
    return ""


def read_queue(world: World) -> str:
    """take a message out of a neighbour's System V queue"""
    room = ctypes.create_string_buffer(8 + 2 * TEXT_BYTES)
    _call("msgrcv", world.objects["read_queue"], room, ctypes.c_size_t(2 * TEXT_BYTES), ctypes.c_long(0), NO_WAIT)
    return room.raw[8:].decode(errors="replace")


def write_queue(world: World) -> str:
    """put a message into a neighbour's System V queue"""
    message = (1).to_bytes(8, "little") + b"escaped"
    _call("msgsnd", world.objects["write_queue"], message, ctypes.c_size_t(7), NO_WAIT)
    return ""


def describe_queue(world: World) -> str:
    """ask for the state of a neighbour's System V queue"""
    return _got("msgctl", world.objects["describe_queue"], IPC_STATUS, ctypes.create_string_buffer(256))


def find_queue(world: World) -> str:
    """find a System V queue by its key"""
    return _got("msgget", world.keys["find_queue"], 0)


def remove_queue(world: World) -> str:
    """remove a neighbour's System V queue"""
    _call("msgctl", world.objects["remove_queue"], IPC_REMOVE, None)
    return ""


def raise_semaphore(world: World) -> str:
    """raise a neighbour's System V semaphore"""
    _call("semop", world.objects["raise_semaphore"], _one_up(), ctypes.c_size_t(1))
    return ""


def raise_semaphore_in_time(world: World) -> str:
    """raise a neighbour's System V semaphore, with a time limit"""
    _call("semtimedop", world.objects["raise_semaphore_in_time"], _one_up(), ctypes.c_size_t(1), None)
    return ""


def set_semaphore(world: World) -> str:
    """set a neighbour's System V semaphore"""
    _call("semctl", world.objects["set_semaphore"], 0, SET_VALUE, 7)
    return ""


def find_semaphores(world: World) -> str:
    """find System V semaphores by their key"""
    return _got("semget", world.keys["find_semaphores"], 0, 0)


def remove_semaphores(world: World) -> str:
    """remove a neighbour's System V semaphores"""
    _call("semctl", world.objects["remove_semaphores"], 0, IPC_REMOVE, 0)
    return ""


def list_segments(world: World) -> str:
    """list the System V shared memory of all processes"""
    with open("/proc/sysvipc/shm") as listing:
        keys = {int(line.split()[0]) for line in listing.readlines()[1:]}
    return GOT_IT if world.keys["read_shared_segment"] in keys else ""


def leave_segment(world: World) -> str:
    """leave System V shared memory that outlives the run"""
    _call("shmget", world.keys["leave_segment"], ctypes.c_size_t(LEFT_BYTES), IPC_CREATE | 0o600)
    return ""


def leave_queue(world: World) -> str:
    """leave a System V queue that outlives the run"""
    _call("msgget", world.keys["leave_queue"], IPC_CREATE | 0o600)
    return ""


def leave_semaphores(world: World) -> str:
    """leave System V semaphores that outlive the run"""
    _call("semget", world.keys["leave_semaphores"], 1, IPC_CREATE | 0o600)
    return ""


def leave_posix_queue(world: World) -> str:
    """leave a POSIX message queue that outlives the run"""
    name = os.path.basename(world.leftovers["leave_posix_queue"]).encode()
    _call("mq_open", name, os.O_CREAT | os.O_RDWR, 0o600, None)
    return ""


def _attached(segment: int, flags: int) -> int:
    # libc's own, whose result is not cut to 32 bits.
    library = ctypes.CDLL(None, use_errno=True)
    attach: Callable[..., int] = library.shmat
    library.shmat.restype = ctypes.c_void_p
    address = attach(segment, None, flags)
    if address is None or ctypes.c_long(address).value == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return address


def _one_up() -> ctypes.Array[ctypes.c_short]:
    return (ctypes.c_short * 3)(0, 1, NO_WAIT)


def _call(name: str, *arguments: object) -> int:
    return system_call(numbers(machine())[name], *arguments)


def _got(name: str, *arguments: object) -> str:
    _call(name, *arguments)
    return GOT_IT


# What makes objects comes last: under bubblewrap their ids are those of objects outside.
ATTACKS = (
    read_segment, read_shared_segment, write_segment, describe_segment, remove_segment, read_queue, write_queue,
    describe_queue, find_queue, remove_queue, raise_semaphore, raise_semaphore_in_time, set_semaphore, find_semaphores,
    remove_semaphores, list_segments, leave_segment, leave_queue, leave_semaphores, leave_posix_queue,
)  # fmt: skip
