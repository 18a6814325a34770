"""Filters are numbers: they are compared with what other libraries know."""

import ctypes
import errno

import pytest

from mcp_servers.sandbox.bpf import Refusal, is_, is_not, program
from mcp_servers.sandbox.filters import Gaps, bubblewrap_filter, landlock_filter
from mcp_servers.sandbox.system_calls import ARCHITECTURES, numbers

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X86_64 = ARCHITECTURES["x86_64"]
# Newer than the libseccomp of Debian 12.
UNKNOWN_TO_LIBSECCOMP = {"fchmodat2", "file_setattr", "open_tree_attr", "removexattrat", "setxattrat"}


def verdict(filter_: bytes, number: int, *arguments: int, architecture: int = X86_64) -> int:
    """What the kernel would do: a reader of the few instructions that filters use."""
    data = number.to_bytes(4, "little") + architecture.to_bytes(4, "little") + bytes(8)
    data += b"".join(value.to_bytes(8, "little") for value in (*arguments, *[0] * (6 - len(arguments))))
    line, accumulator = 0, 0
    while True:
        operation, when_true, when_false = (
            int.from_bytes(filter_[line * 8 : line * 8 + 2], "little"), filter_[line * 8 + 2], filter_[line * 8 + 3],
        )  # fmt: skip
        value = int.from_bytes(filter_[line * 8 + 4 : line * 8 + 8], "little")
        line += 1
        match operation:
            case 0x20:
                accumulator = int.from_bytes(data[value : value + 4], "little")
            case 0x54:
                accumulator &= value
            case 0x15:
                line += when_true if accumulator == value else when_false
            case 0x35:
                line += when_true if accumulator >= value else when_false
            case _:
                return value


def test_a_refusal_applies_only_if_every_test_is_true() -> None:
    filter_ = program(X86_64, [Refusal(7, (is_(0, 1), is_not(1, 4, mask=0xF))), Refusal(7, (is_(2, 9),), errno.ENOSYS)])
    assert verdict(filter_, 7, 1, 5) == ERRNO | errno.EPERM
    assert verdict(filter_, 7, 1, 0x14) == ALLOW
    assert verdict(filter_, 7, 2, 5) == ALLOW
    assert verdict(filter_, 7, 2, 5, 9) == ERRNO | errno.ENOSYS
    assert verdict(filter_, 8, 1, 5, 9) == ALLOW


def test_another_architecture_is_killed_and_x32_has_no_calls() -> None:
    filter_ = program(X86_64, [])
    assert verdict(filter_, 0, architecture=0x40000003) == KILL
    assert verdict(filter_, 0x40000000) == ERRNO | errno.ENOSYS


@pytest.mark.fault("sandbox: a message to the network or to a host's socket")
def test_beside_landlock_only_unix_streams_are_left_of_the_network() -> None:
    filter_, known = landlock_filter(Gaps(own_uid=True, landlock_abi=7), pid=5), numbers("x86_64")
    unix, stream, datagram, close_on_exec = 1, 1, 2, 0o2000000
    assert verdict(filter_, known["socket"], unix, stream | close_on_exec) == ALLOW
    assert verdict(filter_, known["socketpair"], unix, stream) == ALLOW
    assert verdict(filter_, known["socket"], unix, datagram | close_on_exec) == ERRNO | errno.EPERM
    assert verdict(filter_, known["socketpair"], unix, datagram) == ERRNO | errno.EPERM
    assert {verdict(filter_, known["socket"], family, stream) for family in (2, 10, 16, 17, 40)} == {
        ERRNO | errno.EOPNOTSUPP
    }
    assert verdict(filter_, known["connect"]) == ERRNO | errno.EPERM


@pytest.mark.fault("sandbox: shared memory, queues or semaphores of another process, by their ids")
@pytest.mark.parametrize("gaps", [Gaps(own_uid=True, landlock_abi=7), Gaps(own_uid=False, landlock_abi=1)])
def test_beside_landlock_no_call_reaches_objects_that_all_processes_share(gaps: Gaps) -> None:
    filter_, known = landlock_filter(gaps, pid=5), numbers("x86_64")
    shared = {name for name in known if name.startswith(("shm", "msg", "sem", "mq_"))}
    assert len(shared) == 14
    assert {verdict(filter_, known[name], 1, 2, 3) for name in shared} == {ERRNO | errno.EPERM}


def test_in_bubblewrap_the_network_is_its_own_but_the_machines_host_is_out_of_reach() -> None:
    filter_, known = bubblewrap_filter(), numbers("x86_64")
    assert verdict(filter_, known["connect"]) == ALLOW
    assert verdict(filter_, known["socket"], 2, 2) == ALLOW
    assert verdict(filter_, known["socket"], 40, 1) == ERRNO | errno.EPERM


@pytest.mark.fault("sandbox: a kernel whose Landlock is old")
def test_on_kernels_whose_landlock_knows_no_signals_only_oneself_can_be_signalled() -> None:
    known = numbers("x86_64")
    old = landlock_filter(Gaps(own_uid=False, landlock_abi=2), pid=500)
    assert verdict(old, known["kill"], 500, 9) == ALLOW
    assert verdict(old, known["kill"], 501, 9) == ERRNO | errno.EPERM
    assert verdict(old, known["truncate"]) == ERRNO | errno.EPERM
    assert {verdict(old, known["ioctl"], 3, request) for request in (0x8901, 0x8902)} == {ERRNO | errno.EPERM}
    assert verdict(old, known["ioctl"], 3, 0x5451) == ALLOW
    newer = landlock_filter(Gaps(own_uid=False, landlock_abi=6), pid=500)
    assert verdict(newer, known["kill"], 501, 9) == ALLOW
    assert verdict(landlock_filter(Gaps(own_uid=True, landlock_abi=2), pid=500), known["kill"], 501, 9) == ALLOW


def test_file_attributes_are_pretended_only_without_a_uid_of_ones_own() -> None:
    known = numbers("x86_64")
    assert verdict(landlock_filter(Gaps(False, 7), 5), known["chmod"]) == ERRNO
    assert verdict(landlock_filter(Gaps(True, 7), 5), known["chmod"]) == ALLOW
    assert verdict(landlock_filter(Gaps(True, 7), 5), known["setxattr"]) == ERRNO | errno.EOPNOTSUPP


def test_a_mark_cannot_be_washed_off() -> None:
    known = numbers("x86_64")
    for filter_ in (bubblewrap_filter(), landlock_filter(Gaps(True, 7), 5)):
        assert verdict(filter_, known["setrlimit"], 10) == ERRNO | errno.EPERM
        assert verdict(filter_, known["prlimit64"], 0, 10, 1 << 32) == ERRNO | errno.EPERM
        assert verdict(filter_, known["prlimit64"], 0, 10, 0) == ALLOW
        assert verdict(filter_, known["prlimit64"], 0, 7, 1) == ALLOW
        assert verdict(filter_, known["prlimit64"], 77, 7, 0) == ERRNO | errno.EPERM


@pytest.mark.system
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_the_numbers_are_those_of_libseccomp(architecture: str) -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    known = {name: library.seccomp_syscall_resolve_name_arch(ARCHITECTURES[architecture], name.encode()) for name in
             numbers(architecture)}  # fmt: skip
    differing = {name for name, number in numbers(architecture).items() if known[name] != number}
    assert differing <= UNKNOWN_TO_LIBSECCOMP
