"""Attacks on a neighbour: read its memory and environment, signal it, starve it, take over its namespaces."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from mcp_servers.sandbox.escapes.world import GOT_IT, World
from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers

PTRACE_SEIZE = 0x4206
SECRET_BYTES = 48
MARK_LIMIT = 10
# Each attack has a signal of its own; the neighbour writes down which ones it got.
SIGNALS = {
    "send_signal": signal.SIGUSR1,
    "signal_to_thread": signal.SIGUSR2,
    "signal_by_descriptor": signal.SIGHUP,
    "signal_with_value": signal.SIGVTALRM,
    "signal_to_group": signal.SIGWINCH,
    "signal_to_all": signal.SIGURG,
}


def read_environment(world: World) -> str:
    """read a neighbour's environment"""
    return _proc(world, "environ")


def read_command_line(world: World) -> str:
    """read a neighbour's command line"""
    return _proc(world, "cmdline")


def read_memory_by_proc(world: World) -> str:
    """read a neighbour's memory through /proc"""
    with open(f"/proc/{world.neighbour_pid}/mem", "rb", buffering=0) as memory:
        memory.seek(world.neighbour_address)
        return memory.read(SECRET_BYTES).decode(errors="replace")


def read_memory_by_call(world: World) -> str:
    """read a neighbour's memory with process_vm_readv"""
    room = ctypes.create_string_buffer(SECRET_BYTES)
    here = (ctypes.c_size_t * 2)(ctypes.addressof(room), SECRET_BYTES)
    there = (ctypes.c_size_t * 2)(world.neighbour_address, SECRET_BYTES)
    _call("process_vm_readv", world.neighbour_pid, here, 1, there, 1, ctypes.c_ulong(0))
    return room.value.decode(errors="replace")


def list_descriptors(world: World) -> str:
    """list what a neighbour has open"""
    folder = f"/proc/{world.neighbour_pid}/fd"
    targets = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    return GOT_IT if world.neighbour_file in targets else ""


def trace(world: World) -> str:
    """attach to a neighbour as a debugger"""
    _call("ptrace", PTRACE_SEIZE, world.neighbour_pid, 0, 0)
    return GOT_IT


def trace_a_child(world: World) -> str:
    """debug a child of one's own: the door to rewriting its system calls"""
    _call("ptrace", 0, 0, 0, 0)
    return GOT_IT


def take_a_descriptor(world: World) -> str:
    """take a descriptor out of a neighbour"""
    handle = os.pidfd_open(world.neighbour_pid)
    _call("pidfd_getfd", handle, 1, 0)
    return GOT_IT


def enter_namespace(world: World) -> str:
    """enter a neighbour's namespaces"""
    handle = os.open(f"/proc/{world.neighbour_pid}/ns/uts", os.O_RDONLY)
    _call("setns", handle, 0)
    return GOT_IT


def send_signal(world: World) -> str:
    """signal a neighbour"""
    os.kill(world.neighbour_pid, SIGNALS["send_signal"])
    return ""


def signal_to_thread(world: World) -> str:
    """signal a neighbour's thread"""
    _call("tgkill", world.neighbour_pid, world.neighbour_pid, int(SIGNALS["signal_to_thread"]))
    return ""


def signal_by_descriptor(world: World) -> str:
    """signal a neighbour through a pidfd"""
    signal.pidfd_send_signal(os.pidfd_open(world.neighbour_pid), SIGNALS["signal_by_descriptor"])
    return ""


def signal_with_value(world: World) -> str:
    """queue a signal for a neighbour"""
    information = (ctypes.c_int * 32)(int(SIGNALS["signal_with_value"]), 0, -1)
    _call("rt_sigqueueinfo", world.neighbour_pid, int(SIGNALS["signal_with_value"]), information)
    return ""


def signal_to_group(world: World) -> str:
    """signal a neighbour's process group"""
    os.killpg(world.neighbour_pid, SIGNALS["signal_to_group"])
    return ""


def signal_to_all(world: World) -> str:
    """signal every process there is"""
    os.kill(-1, SIGNALS["signal_to_all"])
    return ""


def limit_neighbour(world: World) -> str:
    """lower a neighbour's limits"""
    resource.prlimit(world.neighbour_pid, resource.RLIMIT_NOFILE, (7, 7))
    return ""


def slow_neighbour(world: World) -> str:
    """lower a neighbour's priority"""
    os.setpriority(os.PRIO_PROCESS, world.neighbour_pid, 19)
    return ""


def slow_group(world: World) -> str:
    """lower the priority of a neighbour's process group"""
    os.setpriority(os.PRIO_PGRP, world.neighbour_pid, 18)
    return ""


def pin_neighbour(world: World) -> str:
    """crowd a neighbour onto one processor"""
    os.sched_setaffinity(world.neighbour_pid, {min(os.sched_getaffinity(0))})
    return ""


def change_own_mark(world: World) -> str:
    """wash off the mark by which the run is ended"""
    return limit_oneself(MARK_LIMIT, resource.getrlimit(MARK_LIMIT)[1] - 1)


def limit_oneself(kind: int, value: int) -> str:
    """Set a limit of this process; a refusal is an OSError, which Python hides."""
    try:
        resource.setrlimit(kind, (value, value))
    except ValueError as error:
        raise PermissionError(0, str(error)) from None
    return GOT_IT


def _proc(world: World, name: str) -> str:
    with open(f"/proc/{world.neighbour_pid}/{name}", errors="replace") as file:
        return file.read()


def _call(name: str, *arguments: object) -> None:
    system_call(numbers(machine())[name], *arguments)


ATTACKS = (
    read_environment, read_command_line, read_memory_by_proc, read_memory_by_call, list_descriptors, trace,
    trace_a_child, take_a_descriptor, enter_namespace, send_signal, signal_to_thread, signal_by_descriptor,
    signal_with_value, signal_to_group, signal_to_all, limit_neighbour, slow_neighbour, slow_group, pin_neighbour,
    change_own_mark,
)  # fmt: skip
