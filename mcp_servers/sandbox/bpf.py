"""Write seccomp filters: refusals with tests on a system call's arguments, assembled to classic BPF."""

import ctypes
import errno
import struct
from collections.abc import Sequence
from typing import NamedTuple

from mcp_servers.sandbox.libc import PR_SET_SECCOMP, prctl

LOAD_WORD, AND, JUMP_EQUAL, JUMP_GREATER_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
KILL_PROCESS, RETURN_ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
WHOLE_WORD = 0xFFFFFFFF
# Numbers from here on belong to the x32 interface of x86-64, which would pass by every rule.
X32_NUMBERS = 0x40000000
SECCOMP_MODE_FILTER = 2


class Test(NamedTuple):
    """Is one 32-bit half of an argument, under a mask, (not) a value?"""

    offset: int
    value: int
    equal: bool
    mask: int = WHOLE_WORD


def is_(argument: int, value: int, mask: int = WHOLE_WORD) -> Test:
    """The low half of the argument equals the value."""
    return Test(ARGUMENTS_OFFSET + 8 * argument, value, True, mask)


def is_not(argument: int, value: int, mask: int = WHOLE_WORD) -> Test:
    """The low half of the argument differs from the value."""
    return Test(ARGUMENTS_OFFSET + 8 * argument, value, False, mask)


def high_is_not(argument: int, value: int) -> Test:
    """The high half of the argument differs from the value."""
    return Test(ARGUMENTS_OFFSET + 8 * argument + 4, value, False)


class Refusal(NamedTuple):
    """The call fails with `code` if all tests are true; code 0 pretends success."""

    number: int
    tests: tuple[Test, ...] = ()
    code: int = errno.EPERM


def program(architecture: int, refusals: Sequence[Refusal]) -> bytes:
    """The filter: a foreign architecture kills the process, a refusal returns its code, the rest is allowed."""
    code = [
        _instruction(LOAD_WORD, ARCHITECTURE_OFFSET),
        _instruction(JUMP_EQUAL, architecture, 1, 0),
        _instruction(RETURN, KILL_PROCESS),
        _instruction(LOAD_WORD, NUMBER_OFFSET),
        _instruction(JUMP_GREATER_EQUAL, X32_NUMBERS, 0, 1),
        _instruction(RETURN, RETURN_ERRNO | errno.ENOSYS),
    ]
    for refusal in refusals:
        code += _refuse(refusal)
    return b"".join([*code, _instruction(RETURN, ALLOW)])


def install(filter_: bytes) -> None:
    """Put this process and everything it becomes under the filter; `no_new_privs` must be set.

    Raises:
        OSError: the kernel has no seccomp filters.
    """
    code = ctypes.create_string_buffer(filter_, len(filter_))
    head = struct.pack("HxxxxxxP", len(filter_) // 8, ctypes.addressof(code))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(head, len(head)))


def _refuse(refusal: Refusal) -> list[bytes]:
    result = _instruction(RETURN, RETURN_ERRNO | refusal.code)
    if not refusal.tests:
        return [_instruction(JUMP_EQUAL, refusal.number, 0, 1), result]
    # A test that fails goes to the last line, which loads the number again for the next refusal.
    body = [result, _instruction(LOAD_WORD, NUMBER_OFFSET)]
    for test in reversed(refusal.tests):
        away = len(body) - 1
        jump = _instruction(JUMP_EQUAL, test.value, *((0, away) if test.equal else (away, 0)))
        masking = [] if test.mask == WHOLE_WORD else [_instruction(AND, test.mask)]
        body = [_instruction(LOAD_WORD, test.offset), *masking, jump, *body]
    return [_instruction(JUMP_EQUAL, refusal.number, 0, len(body)), *body]


def _instruction(operation: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, when_true, when_false, value)
