"""System calls that Python has no function for, through ctypes; an error is an OSError."""

import ctypes
import os
from typing import Any

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 28, 38
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4


# Opened once: a run makes hundreds of calls.
_LIBC = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: Any) -> int:
    """The result of a system call.

    Raises:
        OSError: the call failed.
    """
    result = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prctl(option: int, first: Any = 0, second: Any = 0) -> None:
    """Set one attribute of this process.

    Raises:
        OSError: the kernel refused it.
    """
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in (first, second, 0, 0)]
    if _LIBC.prctl(ctypes.c_int(option), *words) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
