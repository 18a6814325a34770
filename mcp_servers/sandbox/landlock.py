"""Landlock: allow named paths and nothing else, by system calls (https://docs.kernel.org/userspace-api/landlock.html)."""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Sequence

from mcp_servers.sandbox.libc import system_call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION, RULE_PATH_BENEATH, RULE_NET_PORT = 1, 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
# How many file rights each ABI knows: REFER came with 2, TRUNCATE with 3, IOCTL_DEV with 5.
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
BIND_AND_CONNECT_TCP, CONNECT_TCP, TCP_ABI = 0b11, 0b10, 4
SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

READABLE_DEVICES = ("/dev/random", "/dev/urandom", "/dev/zero")
WRITABLE_DEVICES = ("/dev/null", "/dev/full")
# Shared by all programs of a uid: terminals could be read and typed into, shared memory read.
DEVICES_OF_A_UID = ("/dev/ptmx", "/dev/pts", "/dev/shm")  # noqa: S108
# The machine's figures and the program's own entry, never the list of all processes.
PROC_PATHS = (
    "/proc/self", "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/stat", "/proc/uptime",
    "/proc/version", "/sys/devices/system/cpu",
)  # fmt: skip


def abi() -> int:
    """The kernel's Landlock version; 0 without Landlock."""
    try:
        return system_call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(CREATE_RULESET_VERSION))
    except OSError:
        return 0


def ruleset(
    version: int, readable: Sequence[str], writable: Sequence[str], own_uid: bool, port: int | None = None
) -> int:
    """A file descriptor of the rules: these paths and the devices a program needs; nothing else, TCP to the port only.

    Raises:
        OSError: a path is missing, or the kernel refused a rule.
    """
    every_right = (1 << FILE_RIGHTS[min(version, max(FILE_RIGHTS))]) - 1
    descriptor = _create(version, every_right)
    devices = (*WRITABLE_DEVICES, *(DEVICES_OF_A_UID if own_uid else ()))
    _allow(descriptor, READ, (*readable, *_present(PROC_PATHS), *_present(READABLE_DEVICES)))
    _allow(descriptor, every_right & ~(MAKE_CHAR | MAKE_BLOCK), (*writable, *_present(devices)))
    if port is not None:
        rule = struct.pack("=QQ", CONNECT_TCP, port)
        system_call(ADD_RULE, ctypes.c_int(descriptor), ctypes.c_int(RULE_NET_PORT), rule, ctypes.c_uint(0))
    return descriptor


def restrict(descriptor: int) -> None:
    """Put this process and everything it becomes under the rules; `no_new_privs` must be set.

    Raises:
        OSError: the kernel refused it.
    """
    system_call(RESTRICT_SELF, ctypes.c_int(descriptor), ctypes.c_uint(0))
    os.close(descriptor)


def _create(version: int, every_right: int) -> int:
    words = [every_right]
    if version >= TCP_ABI:
        words.append(BIND_AND_CONNECT_TCP)
    if version >= 6:
        words.append(SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    attribute = struct.pack(f"={len(words)}Q", *words)
    return system_call(CREATE_RULESET, attribute, ctypes.c_size_t(len(attribute)), ctypes.c_uint(0))


def _allow(descriptor: int, rights: int, paths: Iterable[str]) -> None:
    for path in paths:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = rights if stat.S_ISDIR(os.fstat(target).st_mode) else rights & ON_FILES
        rule = struct.pack("=Qi", allowed, target)
        system_call(ADD_RULE, ctypes.c_int(descriptor), ctypes.c_int(RULE_PATH_BENEATH), rule, ctypes.c_uint(0))
        os.close(target)


def _present(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]
