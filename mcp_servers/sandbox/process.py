"""Make this process small before it becomes the program: uid, capabilities, limits, descriptors, parent."""

import fcntl
import os
import resource
import signal
import struct
import sys
from contextlib import suppress

from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.libc import (
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAP_AMBIENT_RAISE,
    PR_CAPBSET_DROP,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    PR_SET_SECUREBITS,
    prctl,
    system_call,
)
from mcp_servers.sandbox.policy import Limits
from mcp_servers.sandbox.system_calls import machine

CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION_3 = 0x20080522
CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SETFCAP, HIGHEST_CAPABILITY = 6, 7, 8, 31, 63
# SECBIT_NOROOT, NO_SETUID_FIXUP, KEEP_CAPS off, each locked: uid 0 brings no capabilities any more.
NO_ROOT_LOCKED = 0b101111
# The kernel has ignored this limit since 2.4.25, programs inherit it and cannot change it: it carries the run's mark.
MARK_LIMIT = 10


def effective_capabilities() -> int:
    """The capabilities this process has, as a bit mask."""
    with open("/proc/self/status", "rb") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith(b"CapEff:"))


def may_change_uid() -> bool:
    """Whether this process may become another user (the user namespace may still lack the uid)."""
    wanted = 1 << CAP_SETUID | 1 << CAP_SETGID
    return effective_capabilities() & wanted == wanted


def apply_limits(limits: Limits, mark: int | None, counts_processes: bool) -> None:
    """Set the resource limits, and the mark; `counts_processes`: the uid belongs to this run alone.

    Raises:
        SandboxError: a limit of this process is lower than a mark needs.
    """
    wanted = {
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_DATA: limits.data,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes if counts_processes else None,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in wanted.items():
        if value is not None:
            _lower(kind, value)
    if limits.nice is not None:
        yield_to_others(limits.nice)
    if mark is not None:
        try:
            resource.setrlimit(MARK_LIMIT, (mark, mark))
        except (OSError, ValueError):
            raise SandboxError("mark: this process already runs under a lower one") from None


def yield_to_others(nice: int) -> None:
    """Give this process and its session at least that niceness."""
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    # Outside of control groups many systems first divide the processor among sessions, whatever is in them.
    with suppress(OSError), open("/proc/self/autogroup", "w") as autogroup:
        autogroup.write(str(nice))


def become(uid: int | None, keep: int = 0, umask: int = 0o077) -> None:
    """Give up every capability but `keep` (a mask), and become the uid (with the group of its number), if any.

    Raises:
        SandboxError: the uid cannot be had here.
    """
    capabilities = effective_capabilities()
    if capabilities >> CAP_SETPCAP & 1:
        _close_capabilities(keep)
    if uid is not None:
        _change_uid(uid)
    os.umask(umask)
    _keep_capabilities(keep & capabilities)


def no_new_privileges() -> None:
    """From here on no program gains rights by being executed."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Send this program the signal when the thread that started it ends.

    Raises:
        SandboxError: it has ended already.
    """
    prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        raise SandboxError("the program that asked for this run has ended")


def be_readable_to_itself() -> None:
    """Undo what a change of uid does to a process that becomes no program: it closes its own /proc entry to it."""
    prctl(PR_SET_DUMPABLE, 1)


def run_from_memory() -> None:
    """Become a sealed copy of this program: forks of it that are confined cannot reach its file by `/proc/self/exe`."""
    if os.readlink("/proc/self/exe").startswith("/memfd:"):
        return
    copy = os.memfd_create("python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open("/proc/self/exe", "rb") as program:
        os.write(copy, program.read())
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    os.execve(copy, sys.orig_argv, os.environ)  # noqa: S606


def close_descriptors() -> None:
    """Close everything but standard input, output and error: an inherited socket is a door."""
    os.closerange(3, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096))


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def _close_capabilities(keep: int) -> None:
    prctl(PR_SET_SECUREBITS, NO_ROOT_LOCKED)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(HIGHEST_CAPABILITY + 1):
        try:
            if not keep >> capability & 1:
                prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            return  # the kernel knows no more of them


def _change_uid(uid: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise SandboxError(f"uid: {uid} cannot be had here ({error.strerror}); leave it out") from None


def _keep_capabilities(kept: int) -> None:
    head = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    system_call(CAPSET[machine()], head, struct.pack("=6I", low, low, low, high, high, high))
    for capability in range(HIGHEST_CAPABILITY + 1):
        if kept >> capability & 1:
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)
