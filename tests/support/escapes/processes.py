"""Attacks on a neighbour: read and change its memory, starve it, take over its files and namespaces."""

import ctypes
import os
import resource
import struct

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.world import GOT_IT, World

PTRACE_SEIZE = 0x4206
SECRET_BYTES = 48
MARK_LIMIT = 10
# Room behind the secret, which the neighbour keeps for this.
SPARE_BYTES = 100
SCHED_BATCH, NICE_BY_ATTRIBUTES = 3, 17
IO_PRIORITY = 2 << 13 | 7
CLONE_PARENT, SIGCHLD = 0x8000, 17


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


def write_memory_by_proc(world: World) -> str:
    """change a neighbour's memory through /proc"""
    with open(f"/proc/{world.neighbour_pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(world.neighbour_address + SPARE_BYTES)
        memory.write(b"x")
    return GOT_IT


def write_memory_by_call(world: World) -> str:
    """change a neighbour's memory with process_vm_writev"""
    room = ctypes.create_string_buffer(b"x")
    here = (ctypes.c_size_t * 2)(ctypes.addressof(room), 1)
    there = (ctypes.c_size_t * 2)(world.neighbour_address + SPARE_BYTES, 1)
    _call("process_vm_writev", world.neighbour_pid, here, 1, there, 1, ctypes.c_ulong(0))
    return GOT_IT


def read_memory_map(world: World) -> str:
    """read the addresses of a neighbour's memory"""
    return GOT_IT if "[stack]" in _proc(world, "maps") else ""


def read_auxiliary_vector(world: World) -> str:
    """read what the kernel gave a neighbour at its start: addresses, random bytes"""
    with open(f"/proc/{world.neighbour_pid}/auxv", "rb") as file:
        return GOT_IT if file.read() else ""


def read_by_neighbours_descriptor(world: World) -> str:
    """open a file through a neighbour's descriptor"""
    folder = f"/proc/{world.neighbour_pid}/fd"
    own = next(name for name in sorted(os.listdir(folder)) if os.readlink(f"{folder}/{name}") == world.neighbour_file)
    with open(f"{folder}/{own}") as file:
        return file.read()


def read_by_neighbours_folder(world: World) -> str:
    """open a file through a neighbour's working directory"""
    with open(f"/proc/{world.neighbour_pid}/cwd/secret.txt") as file:
        return file.read()


def compare_with_neighbour(world: World) -> str:
    """compare kernel objects with a neighbour's"""
    _call("kcmp", os.getpid(), world.neighbour_pid, 0, ctypes.c_ulong(0), ctypes.c_ulong(0))
    return GOT_IT


def locate_pages(world: World) -> str:
    """ask where a neighbour's memory lies"""
    pages, status = (ctypes.c_void_p * 1)(world.neighbour_address), (ctypes.c_int * 1)()
    _call("move_pages", world.neighbour_pid, ctypes.c_ulong(1), pages, None, status, 0)
    return GOT_IT


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


def slow_by_attributes(world: World) -> str:
    """lower a neighbour's priority by its scheduling attributes"""
    attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, NICE_BY_ATTRIBUTES, 0, 0, 0, 0)
    _call("sched_setattr", world.neighbour_pid, attributes, 0)
    return GOT_IT if os.getpriority(os.PRIO_PROCESS, world.neighbour_pid) == NICE_BY_ATTRIBUTES else ""


def change_scheduler(world: World) -> str:
    """give a neighbour another scheduling policy"""
    os.sched_setscheduler(world.neighbour_pid, SCHED_BATCH, os.sched_param(0))
    return ""


def slow_files(world: World) -> str:
    """lower a neighbour's priority for reading and writing"""
    _call("ioprio_set", 1, world.neighbour_pid, IO_PRIORITY)
    return ""


def offer_to_the_killer(world: World) -> str:
    """make a neighbour the first to be ended when memory is short"""
    with open(f"/proc/{world.neighbour_pid}/oom_score_adj", "w") as file:
        file.write("1000")
    return ""


def become_a_sibling(world: World) -> str:
    """start a process for which one's own starter is responsible (CLONE_PARENT)"""
    # The call's result in the new process is 0, as after a fork.
    started = system_call(numbers(machine())["clone"], ctypes.c_ulong(CLONE_PARENT | SIGCHLD), 0, 0, 0, 0)
    if started == 0:
        os._exit(0)
    return GOT_IT


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
    read_environment, read_command_line, read_memory_by_proc, read_memory_by_call, write_memory_by_proc,
    write_memory_by_call, read_memory_map, read_auxiliary_vector, read_by_neighbours_descriptor,
    read_by_neighbours_folder, compare_with_neighbour, locate_pages, list_descriptors, trace, trace_a_child,
    take_a_descriptor, enter_namespace, limit_neighbour, slow_by_attributes, slow_neighbour, slow_group,
    change_scheduler, slow_files, pin_neighbour, offer_to_the_killer, become_a_sibling,
    change_own_mark,
)  # fmt: skip
