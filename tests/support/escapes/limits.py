"""Attacks on the limits: more memory, files and descriptors than allowed, and the limits themselves."""

import mmap
import os
import resource

from tests.support.escapes.processes import limit_oneself
from tests.support.escapes.world import GOT_IT, World

GIB = 1 << 30
MANY_FILES = 300


def much_memory(world: World) -> str:
    """allocate more memory than allowed"""
    try:
        bytearray(world.memory_limit + GIB)
    except MemoryError:
        return ""
    return GOT_IT


def much_mapped_memory(world: World) -> str:
    """map more shared memory than allowed"""
    mmap.mmap(-1, world.memory_limit + GIB).close()
    return GOT_IT


def many_files(world: World) -> str:
    """open more files than allowed"""
    for _ in range(MANY_FILES):
        os.dup(0)
    return GOT_IT


def memory_in_files(world: World) -> str:
    """keep memory in anonymous files, where no limit counts it"""
    handles = [os.memfd_create("escape") for _ in range(4)]
    for handle in handles:
        os.truncate(handle, GIB)
    return GOT_IT


def huge_file(world: World) -> str:
    """make a file larger than allowed"""
    with open("huge", "wb") as file:
        file.truncate(10_000 * GIB)
    return GOT_IT


def raise_limits(world: World) -> str:
    """lift one's own limits"""
    return limit_oneself(resource.RLIMIT_AS, resource.RLIM_INFINITY)


def raise_file_size(world: World) -> str:
    """lift the limit on the size of files"""
    return limit_oneself(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)


def dump_core(world: World) -> str:
    """leave a core file"""
    return GOT_IT if resource.getrlimit(resource.RLIMIT_CORE)[1] else ""


ATTACKS = (
    much_memory, much_mapped_memory, many_files, memory_in_files, huge_file, raise_limits, raise_file_size, dump_core,
)  # fmt: skip
