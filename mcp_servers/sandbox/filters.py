"""Which system calls a sandboxed program is refused, per tier."""

import errno
from collections.abc import Iterable
from typing import NamedTuple

from mcp_servers.sandbox.bpf import Refusal, Test, high_is_not, is_, is_not, program
from mcp_servers.sandbox.system_calls import ARCHITECTURES, machine, numbers

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
STREAM, SEQPACKET, TYPE_MASK = 1, 5, 0xF
TCP = 6
FAST_OPEN = 0x20000000
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
NAMESPACES = 0x7E020000
# The new process would be the launcher's sibling: dead, it counts until the one who started the launcher ends.
CLONE_PARENT = 0x8000
RLIMIT_LOCKS = 10
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
F_SETOWN, F_SETSIG, F_SETOWN_EX = 8, 10, 15
FIOSETOWN, SIOCSPGRP = 0x8901, 0x8902

# Doors to other processes, to the kernel's inside, to namespaces and mounts; memfd files are memory no limit counts.
NEVER = """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init fanotify_mark finit_module
fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp
kexec_file_load kexec_load keyctl lookup_dcookie memfd_create memfd_secret migrate_pages modify_ldt mount
mount_setattr move_mount move_pages name_to_handle_at open_by_handle_at open_tree open_tree_attr perf_event_open
pidfd_getfd pivot_root process_madvise process_mrelease process_vm_readv process_vm_writev ptrace quotactl
quotactl_fd reboot request_key setdomainname sethostname setns settimeofday swapoff swapon syslog umount2 unshare
userfaultfd vhangup
"""
# Queues, shared memory and semaphores belong to all where there is no namespace, and their ids are easily guessed, so
# every call is refused, not only those that look an object up; file watches and I/O priorities are shared too.
SHARED = """
inotify_add_watch ioprio_set mq_open mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl
shmdt shmget
"""
# Landlock knows no rule for them, so they would reach every file of the same owner; attributes every writable file.
ATTRIBUTES = (
    "chmod chown fchmod fchmodat fchmodat2 fchown fchownat file_setattr futimesat lchown utime utimensat utimes"
)
EXTENDED_ATTRIBUTES = """
fremovexattr fsetxattr lremovexattr lsetxattr removexattr removexattrat setxattr setxattrat
"""


class Gaps(NamedTuple):
    """What Landlock leaves open in this run: file attributes without a uid of its own, the rest on old kernels."""

    own_uid: bool
    landlock_abi: int


def bubblewrap_filter() -> bytes:
    """The filter inside bubblewrap: own network, processes and IPC, so only doors out of namespaces are closed."""
    calls = _Calls()
    outside = [is_not(0, family) for family in (UNIX, INET, INET6, NETLINK)]
    return calls.program([*calls.always(), *calls.when("socket", *outside)])


def landlock_filter(gaps: Gaps, pid: int, connects: bool = False) -> bytes:
    """The filter beside Landlock: no connection of any kind, and nothing that reaches other processes of the uid.

    `connects`: TCP to where Landlock allows it, but then no sockets with names, which Landlock has no rule for.
    """
    calls = _Calls()
    network = _only_tcp(calls) if connects else _no_network(calls)
    refusals = [*calls.always(), *calls.never(SHARED), *network, *_no_other_process(calls)]
    refusals += calls.never(EXTENDED_ATTRIBUTES, code=errno.EOPNOTSUPP)
    if not gaps.own_uid:
        # Pretended, as on file systems without modes: copying and unpacking would fail otherwise.
        refusals += calls.never(ATTRIBUTES, code=0)
    if not gaps.own_uid and gaps.landlock_abi < 6:
        refusals += _no_signals(calls, pid)
    if gaps.landlock_abi < 3:
        refusals += calls.never("truncate")
    return calls.program(refusals)


class _Calls:
    def __init__(self) -> None:
        self._machine = machine()
        self._numbers = numbers(self._machine)

    def program(self, refusals: list[Refusal]) -> bytes:
        return program(ARCHITECTURES[self._machine], refusals)

    def never(self, names: str, code: int = errno.EPERM) -> list[Refusal]:
        return [Refusal(self._numbers[name], (), code) for name in names.split() if name in self._numbers]

    def when(self, name: str, *tests: Test, code: int = errno.EPERM) -> list[Refusal]:
        return [Refusal(self._numbers[name], tests, code)]

    def always(self) -> list[Refusal]:
        """What no tier allows; the limit that carries the run's mark cannot be changed, nor another's limits."""
        return [
            *self.never(NEVER),
            # glibc falls back to clone, whose flags a filter can read; clone3 keeps them in memory.
            *self.never("clone3", code=errno.ENOSYS),
            *_any_bit(self, "clone", 0, NAMESPACES | CLONE_PARENT),
            *self.when("ioctl", is_(1, TIOCSTI)),
            *self.when("ioctl", is_(1, TIOCLINUX)),
            *self.when("setrlimit", is_(0, RLIMIT_LOCKS)),
            *self.when("prlimit64", is_not(0, 0)),
            *self.when("prlimit64", is_(1, RLIMIT_LOCKS), is_not(2, 0)),
            *self.when("prlimit64", is_(1, RLIMIT_LOCKS), high_is_not(2, 0)),
        ]


def _no_network(calls: _Calls) -> list[Refusal]:
    """Unix streams only, and without connect: TCP Fast Open and datagrams would need no connection."""
    datagram = (is_not(1, STREAM, TYPE_MASK), is_not(1, SEQPACKET, TYPE_MASK))
    return [
        *calls.never("connect"),
        # ZeroMQ ends the process on any other error of a netlink socket.
        *_each(calls.when(name, is_not(0, UNIX), code=errno.EOPNOTSUPP) for name in ("socket", "socketpair")),
        *_each(calls.when(name, *datagram) for name in ("socket", "socketpair")),
        *_no_fast_open(calls),
    ]


def _only_tcp(calls: _Calls) -> list[Refusal]:
    """Streams of TCP itself (not of MPTCP or SCTP, for which Landlock has no rule), and pairs of nameless sockets."""
    return [
        *calls.when("socket", is_not(0, INET), is_not(0, INET6), code=errno.EOPNOTSUPP),
        *calls.when("socket", is_not(1, STREAM, TYPE_MASK)),
        *calls.when("socket", is_not(2, 0), is_not(2, TCP)),
        *calls.when("socketpair", is_not(0, UNIX), code=errno.EOPNOTSUPP),
        *calls.when("socketpair", is_not(1, STREAM, TYPE_MASK), is_not(1, SEQPACKET, TYPE_MASK)),
        *_no_fast_open(calls),
    ]


def _no_fast_open(calls: _Calls) -> list[Refusal]:
    flags = [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)]
    return _each(_any_bit(calls, name, argument, FAST_OPEN) for name, argument in flags)


def _no_other_process(calls: _Calls) -> list[Refusal]:
    """Scheduling only for the process itself; for threads success is pretended, or ZeroMQ ends the process."""
    names = ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "setpriority")
    others = _each(calls.when(name, is_not(0, 0), code=0) for name in names)
    return [*others, *calls.when("setpriority", is_not(1, 0), code=0)]


def _no_signals(calls: _Calls, pid: int) -> list[Refusal]:
    return [
        *calls.never("tkill pidfd_send_signal"),
        *_each(calls.when(name, is_not(0, pid)) for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")),
        *_each(calls.when("fcntl", is_(1, command)) for command in (F_SETOWN, F_SETSIG, F_SETOWN_EX)),
        *_each(calls.when("ioctl", is_(1, command)) for command in (FIOSETOWN, SIOCSPGRP)),
    ]


def _any_bit(calls: _Calls, name: str, argument: int, bits: int) -> list[Refusal]:
    return calls.when(name, is_not(argument, 0, bits))


def _each(parts: Iterable[list[Refusal]]) -> list[Refusal]:
    return [refusal for part in parts for refusal in part]
