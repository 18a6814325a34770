"""What one reader process may take, and how it takes the limits on itself."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass

_PDEATHSIG = 1  # prctl's number for the signal that comes when the parent ends


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Limits of reading one file; memory is address space, which is more than what is really used.

    After `documents` files, or once it has held `kept_bytes` of real memory, a process is replaced; an idle one ends
    after `idle_seconds`.
    """

    seconds: float = 120.0
    memory_bytes: int = 2**30
    output_bytes: int = 64 * 2**20
    documents: int = 50
    kept_bytes: int = 300 * 2**20
    idle_seconds: float = 60.0


def confine(parent: int, memory_bytes: int) -> None:
    """Limit this process: memory, no files written, no core dumps, no life after the parent's."""
    end_with(parent)
    if sys.platform == "win32":
        return
    import resource

    limits = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 256}
    if sys.platform != "darwin":  # macOS refuses it
        limits[resource.RLIMIT_AS] = memory_bytes
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def limit_processor(seconds: float) -> None:
    """End this process when it computes for so many more seconds; a second line behind the server's clock."""
    if sys.platform == "win32":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))


def peak_memory() -> int:
    """The most real memory this process has held, in bytes."""
    if sys.platform == "win32":
        return 0
    if sys.platform == "linux":  # where getrusage would tell the peak of the process that started this one
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), 0)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends; only Linux can."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os.kill(os.getpid(), signal.SIGKILL)
