"""Attacks on the kernel: namespaces, mounts, keys, devices and rights."""

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.world import GOT_IT, World

NEW_USER, NEW_NET, SIGCHLD = 0x10000000, 0x40000000, 17
NEW_MOUNTS, NEW_PROCESSES, NEW_IPC = 0x20000, 0x20000000, 0x8000000
KEYRING_OF_USER = -4
MACHINE_DEVICES = ("vda", "sda", "nvme0n1", "dm-0", "mem", "kmsg")
NO_MODULE = b"\x7fELF"


def user_namespace(world: World) -> str:
    """make a user namespace"""
    return _call("unshare", NEW_USER)


def user_namespace_by_clone(world: World) -> str:
    """make a user namespace with clone"""
    return _child(lambda: _result("clone", ctypes.c_ulong(NEW_USER | SIGCHLD), 0, 0, 0, 0))


def user_namespace_by_clone3(world: World) -> str:
    """make a user namespace with clone3"""
    arguments = (ctypes.c_uint64 * 8)(NEW_USER, 0, 0, 0, SIGCHLD)
    return _child(lambda: _result("clone3", arguments, ctypes.c_size_t(64)))


def network_namespace(world: World) -> str:
    """make a network namespace"""
    return _call("unshare", NEW_NET)


def mount_namespace(world: World) -> str:
    """make a mount namespace in a user namespace"""
    return _call("unshare", NEW_USER | NEW_MOUNTS)


def process_namespace(world: World) -> str:
    """make a process namespace in a user namespace"""
    return _call("unshare", NEW_USER | NEW_PROCESSES)


def ipc_namespace(world: World) -> str:
    """make an IPC namespace in a user namespace"""
    return _call("unshare", NEW_USER | NEW_IPC)


def mount_file_system(world: World) -> str:
    """mount a file system"""
    os.makedirs("mounted", exist_ok=True)
    return _call("mount", b"none", b"mounted", b"tmpfs", ctypes.c_ulong(0), None)


def mount_by_new_calls(world: World) -> str:
    """mount with the newer calls"""
    return _call("fsopen", b"tmpfs", 0)


def change_root(world: World) -> str:
    """change the root folder"""
    return _call("chroot", b".")


def open_by_handle(world: World) -> str:
    """make a file handle that opens a file without its path"""
    handle, mount = (ctypes.c_uint * 34)(128), ctypes.c_int()
    return _call("name_to_handle_at", -100, b".", handle, ctypes.byref(mount), 0)


def change_kernel_setting(world: World) -> str:
    """open the kernel's setting of a program that root runs at every crash"""
    return _opens_for_writing("/proc/sys/kernel/core_pattern")


def press_kernel_key(world: World) -> str:
    """open the file that restarts the machine"""
    return _opens_for_writing("/proc/sysrq-trigger")


def open_the_machine(world: World) -> str:
    """open a disk, the memory or the log of the machine"""
    for name in MACHINE_DEVICES:
        with suppress(OSError):
            os.close(os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK))
            return GOT_IT
    return ""


def store_a_key(world: World) -> str:
    """leave a message in the kernel's keyring of the user"""
    return _call("add_key", b"user", b"escape", b"x", ctypes.c_size_t(1), KEYRING_OF_USER)


def read_keys(world: World) -> str:
    """read the kernel's keyring of the user"""
    return _call("keyctl", 0, KEYRING_OF_USER, 1)


def ring_of_calls(world: World) -> str:
    """make an io_uring, whose operations no filter sees"""
    return _call("io_uring_setup", 8, (ctypes.c_uint8 * 120)())


def load_bpf(world: World) -> str:
    """make a BPF map"""
    attribute = (ctypes.c_uint32 * 32)(2, 4, 4, 1)
    return _call("bpf", 0, attribute, 128)


def count_events(world: World) -> str:
    """open a performance counter"""
    attribute = (ctypes.c_uint32 * 32)(1, 128)
    return _call("perf_event_open", attribute, 0, -1, -1, ctypes.c_ulong(0))


def handle_page_faults(world: World) -> str:
    """handle page faults of the kernel"""
    return _call("userfaultfd", 1)


def load_module(world: World) -> str:
    """load a kernel module: that its format is looked at shows the right to do it"""
    try:
        _result("init_module", NO_MODULE, ctypes.c_ulong(4), b"")
    except OSError as error:
        return GOT_IT if error.errno == errno.ENOEXEC else ""
    return GOT_IT


def become_root(world: World) -> str:
    """become another user"""
    os.setgroups([0])
    return GOT_IT


def hold_capabilities(world: World) -> str:
    """hold any capability"""
    with open("/proc/self/status") as status:
        held = [line.split()[1] for line in status if line.startswith(("CapPrm", "CapEff", "CapBnd", "CapAmb"))]
    return GOT_IT if any(int(mask, 16) for mask in held) else ""


def become_another_user(world: World) -> str:
    """become a user that one is not"""
    os.setresuid(12_345, 12_345, 12_345)
    return GOT_IT


def rename_machine(world: World) -> str:
    """change the machine's name"""
    return _call("sethostname", b"escaped", ctypes.c_size_t(7))


def read_kernel_log(world: World) -> str:
    """read the kernel's log"""
    room = ctypes.create_string_buffer(4096)
    return GOT_IT if _result("syslog", 3, room, 4096) > 0 else ""


def segment_descriptors(world: World) -> str:
    """change the processor's segment table"""
    return _call("modify_ldt", 0, ctypes.create_string_buffer(64), ctypes.c_ulong(64))


def hidden_memory(world: World) -> str:
    """make memory that not even the kernel reads"""
    return _call("memfd_secret", 0)


def type_into_terminal(world: World) -> str:
    """push characters into a terminal's input"""
    import fcntl
    import pty

    child, _ = pty.fork()
    if child == 0:
        try:
            fcntl.ioctl(0, 0x5412, b"x")
        except OSError:
            os._exit(1)
        os._exit(0)
    return GOT_IT if os.waitpid(child, 0)[1] == 0 else ""


def _opens_for_writing(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY))
    return GOT_IT


def _call(name: str, *arguments: object) -> str:
    _result(name, *arguments)
    return GOT_IT


def _result(name: str, *arguments: object) -> int:
    return system_call(numbers(machine())[name], *arguments)


def _child(clone: Callable[[], int]) -> str:
    child = clone()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return GOT_IT


ATTACKS = (
    user_namespace, user_namespace_by_clone, user_namespace_by_clone3, network_namespace, mount_namespace,
    process_namespace, ipc_namespace, mount_file_system, mount_by_new_calls, change_root, open_by_handle,
    change_kernel_setting, press_kernel_key, open_the_machine, store_a_key, read_keys, ring_of_calls, load_bpf,
    count_events, handle_page_faults, load_module, become_root, become_another_user, hold_capabilities, rename_machine,
    read_kernel_log, segment_descriptors, hidden_memory, type_into_terminal,
)  # fmt: skip
