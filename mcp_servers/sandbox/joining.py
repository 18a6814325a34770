"""Enter the sandbox that bubblewrap has made around another process, by its namespaces."""

import fcntl
import os

from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers

# Opens the user namespace that owns a namespace; that of the mounts may be the parent of the program's own.
NS_GET_USERNS = 0xB701
KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "uts")


def join(bubblewrap: int) -> None:
    """Put this process, of the same user, into the namespaces of what runs under bubblewrap's process.

    Only its children are in the new process namespace. It has every capability there, and must give them up.

    Raises:
        OSError: the kernel refused it.
        SandboxError: nothing runs there.
    """
    inside = first_inside(bubblewrap)
    if inside is None:
        raise SandboxError("nothing runs in the sandbox that was to be entered")
    kinds = [kind for kind in KINDS if not _is_shared(inside, kind)]
    mounts, own, *entered = opened = [_opened(inside, kind) for kind in ("mnt", "user", *kinds)]
    owner = fcntl.ioctl(mounts, NS_GET_USERNS)
    nested = [] if os.path.sameopenfile(owner, own) else [own]
    for namespace in (owner, *entered, *nested):
        system_call(numbers(machine())["setns"], namespace, 0)
    for namespace in (owner, *opened):
        os.close(namespace)


def first_inside(bubblewrap: int) -> int | None:
    """The first process in the namespace of bubblewrap's process: all others there end before it."""
    try:
        with open(f"/proc/{bubblewrap}/task/{bubblewrap}/children", "rb") as children:
            return next((int(pid) for pid in children.read().split()), None)
    except OSError:  # it has ended, or this kernel lists no children
        return None


def _opened(process: int, kind: str) -> int:
    return os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def _is_shared(process: int, kind: str) -> bool:
    return os.readlink(f"/proc/{process}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
