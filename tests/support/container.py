"""Be like a container's first process under the default profile: `container.py UID PROGRAM ARGUMENT…`, as root.

The capabilities and the refused system calls are those of the default profile of common container engines: no
namespaces, no mounts, no keys, no io_uring, no sockets to the machine's host; Landlock and filters are allowed.
"""

import errno
import os
import struct
import sys

from mcp_servers.sandbox import bpf, process
from mcp_servers.sandbox.bpf import Refusal, is_, is_not
from mcp_servers.sandbox.filters import NAMESPACES
from mcp_servers.sandbox.libc import PR_CAPBSET_DROP, prctl, system_call
from mcp_servers.sandbox.system_calls import ARCHITECTURES, machine, numbers

# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, mknod,
# audit_write, setfcap
CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
REFUSED = """
acct add_key bpf clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick
init_module io_uring_enter io_uring_register io_uring_setup kexec_file_load kexec_load keyctl lookup_dcookie mount
mount_setattr move_mount open_by_handle_at open_tree perf_event_open pivot_root quotactl reboot request_key sethostname
setdomainname setns settimeofday swapoff swapon syslog umount2 unshare userfaultfd vhangup
"""
AF_ALG, AF_VSOCK = 38, 40


def default_profile() -> bytes:
    known = numbers(machine())
    refusals = [Refusal(known[name]) for name in REFUSED.split()]
    refusals += [Refusal(known["clone"], (is_not(0, 0, NAMESPACES),)), Refusal(known["clone3"], (), errno.ENOSYS)]
    refusals += [Refusal(known["socket"], (is_(0, family),)) for family in (AF_ALG, AF_VSOCK)]
    return bpf.program(ARCHITECTURES[machine()], refusals)


def become_contained(uid: int) -> None:
    for capability in set(range(41)) - CAPABILITIES:
        prctl(PR_CAPBSET_DROP, capability)
    process.no_new_privileges()
    bpf.install(default_profile())
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    else:
        _keep(sum(1 << capability for capability in CAPABILITIES))


def _keep(capabilities: int) -> None:
    head = struct.pack("=Ii", process.CAPABILITY_VERSION_3, 0)
    words = struct.pack("=6I", capabilities, capabilities, 0, 0, 0, 0)
    system_call(process.CAPSET[machine()], head, words)


if __name__ == "__main__":
    become_contained(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
