"""Attacks with signals: every call that sends one, directly or when something happens to a descriptor."""

import ctypes
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.world import World

# Each attack has a signal of its own; the neighbour writes down which ones it got.
SIGNALS: dict[str, int] = {
    "send_signal": signal.SIGUSR1,
    "signal_to_thread": signal.SIGUSR2,
    "signal_by_descriptor": signal.SIGHUP,
    "signal_with_value": signal.SIGVTALRM,
    "signal_to_group": signal.SIGWINCH,
    "signal_to_all": signal.SIGURG,
    "signal_to_any_thread": signal.SIGRTMIN + 1,
    "signal_to_thread_with_value": signal.SIGRTMIN + 2,
    "signal_by_socket": signal.SIGIO,
    "signal_by_socket_group": signal.SIGRTMIN + 3,
    "signal_by_owner": signal.SIGRTMIN + 4,
    "signal_by_owner_of_kind": signal.SIGRTMIN + 5,
    "signal_by_pipe": signal.SIGRTMIN + 6,
}
FIOSETOWN, SIOCSPGRP, FIOASYNC = 0x8901, 0x8902, 0x5452
F_SETSIG, F_SETOWN_EX, OWNER_PROCESS = 10, 15, 1


def send_signal(world: World) -> str:
    """signal a neighbour"""
    os.kill(world.neighbour_pid, SIGNALS["send_signal"])
    return ""


def signal_to_thread(world: World) -> str:
    """signal a neighbour's thread"""
    return _call("tgkill", world.neighbour_pid, world.neighbour_pid, int(SIGNALS["signal_to_thread"]))


def signal_to_any_thread(world: World) -> str:
    """signal a thread by its id alone"""
    return _call("tkill", world.neighbour_pid, SIGNALS["signal_to_any_thread"])


def signal_by_descriptor(world: World) -> str:
    """signal a neighbour through a pidfd"""
    signal.pidfd_send_signal(os.pidfd_open(world.neighbour_pid), SIGNALS["signal_by_descriptor"])
    return ""


def signal_with_value(world: World) -> str:
    """queue a signal for a neighbour"""
    number = int(SIGNALS["signal_with_value"])
    return _call("rt_sigqueueinfo", world.neighbour_pid, number, _information(number))


def signal_to_thread_with_value(world: World) -> str:
    """queue a signal for a neighbour's thread"""
    number = SIGNALS["signal_to_thread_with_value"]
    return _call("rt_tgsigqueueinfo", world.neighbour_pid, world.neighbour_pid, number, _information(number))


def signal_to_group(world: World) -> str:
    """signal a neighbour's process group"""
    os.killpg(world.neighbour_pid, SIGNALS["signal_to_group"])
    return ""


def signal_to_all(world: World) -> str:
    """signal every process there is"""
    os.kill(-1, SIGNALS["signal_to_all"])
    return ""


def signal_by_socket(world: World) -> str:
    """make a neighbour the owner of a socket, so that the kernel signals it (FIOSETOWN, FIOASYNC)"""
    return _notify(lambda end: _own(end, FIOSETOWN, world.neighbour_pid))


def signal_by_socket_group(world: World) -> str:
    """make a neighbour's group the owner of a socket (SIOCSPGRP)"""

    def own(end: socket.socket) -> None:
        with suppress(OSError):
            fcntl.fcntl(end, F_SETSIG, SIGNALS["signal_by_socket_group"])
        _own(end, SIOCSPGRP, -world.neighbour_pid)

    return _notify(own)


def signal_by_owner(world: World) -> str:
    """make a neighbour the owner of a descriptor (F_SETOWN)"""

    def own(end: socket.socket) -> None:
        fcntl.fcntl(end, F_SETSIG, SIGNALS["signal_by_owner"])
        fcntl.fcntl(end, fcntl.F_SETOWN, world.neighbour_pid)

    return _notify(own)


def signal_by_owner_of_kind(world: World) -> str:
    """make a neighbour the owner of a descriptor (F_SETOWN_EX)"""

    def own(end: socket.socket) -> None:
        fcntl.fcntl(end, F_SETSIG, SIGNALS["signal_by_owner_of_kind"])
        fcntl.fcntl(end, F_SETOWN_EX, struct.pack("ii", OWNER_PROCESS, world.neighbour_pid))

    return _notify(own)


def signal_by_pipe(world: World) -> str:
    """make a neighbour the owner of a pipe"""
    reader, writer = os.pipe()
    with suppress(OSError):
        fcntl.fcntl(reader, F_SETSIG, SIGNALS["signal_by_pipe"])
    fcntl.fcntl(reader, fcntl.F_SETOWN, world.neighbour_pid)
    fcntl.ioctl(reader, FIOASYNC, struct.pack("i", 1))
    os.write(writer, b"x")
    return ""


def _own(end: socket.socket, request: int, pid: int) -> None:
    fcntl.ioctl(end, request, struct.pack("i", pid))


def _notify(own: Callable[[socket.socket], None]) -> str:
    end, other = socket.socketpair()
    own(end)
    fcntl.ioctl(end, FIOASYNC, struct.pack("i", 1))
    other.send(b"x")
    return ""


def _information(number: int) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * 32)(number, 0, -1)


def _call(name: str, *arguments: object) -> str:
    system_call(numbers(machine())[name], *arguments)
    return ""


ATTACKS = (
    send_signal, signal_to_thread, signal_to_any_thread, signal_by_descriptor, signal_with_value,
    signal_to_thread_with_value, signal_to_group, signal_to_all, signal_by_socket, signal_by_socket_group,
    signal_by_owner, signal_by_owner_of_kind, signal_by_pipe,
)  # fmt: skip
