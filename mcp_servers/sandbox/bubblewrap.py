"""The bubblewrap command of a policy: own mounts, processes, network and IPC."""

import os
import sys
from collections.abc import Iterator

from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.policy import MIB, Door, Policy, folder_of, new_objects, shown_objects
from mcp_servers.sandbox.protected import parents

PLACES = ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap")
PRLIMIT = "/usr/bin/prlimit"
FORWARDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forward.py")
SCRATCH_BYTES = 256 * MIB
# /proc is read-only as a whole: root without capabilities still owns /proc/sys, and core_pattern names a program that
# the kernel runs outside.
ISOLATION = (
    "--unshare-all", "--new-session", "--cap-drop", "ALL", "--clearenv",
    "--proc", "/proc", "--remount-ro", "/proc",
    "--dev", "/dev", "--size", str(SCRATCH_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev",  # noqa: S108
    "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp",  # noqa: S108
)  # fmt: skip


def program() -> str | None:
    """Where bubblewrap is; only fixed places count, never the caller's PATH."""
    return next((place for place in PLACES if os.access(place, os.X_OK)), None)


def command(policy: Policy, argv: list[str], filter_descriptor: int, door: Door | None = None) -> list[str]:
    """The whole command line.

    Raises:
        SandboxError: bubblewrap or a path is missing.
    """
    place = program()
    if place is None:
        raise SandboxError("bubblewrap is not installed; install it, or use tier 'landlock'")
    return [
        place,
        *ISOLATION,
        *(["--die-with-parent"] if policy.die_with_parent else []),
        *_mounts(policy, _forwarding(door)),
        # Last: mounting needs a root that can be written.
        *("--remount-ro", "/"),
        *(word for pair in (policy.environment or {}).items() for word in ("--setenv", *pair)),
        *("--chdir", policy.workdir, "--seccomp", str(filter_descriptor), "--"),
        *_counted(policy),
        *_forwarder(door),
        *argv,
    ]


def _forwarding(door: Door | None) -> list[str]:
    # What the forwarder needs to be readable: Python, its own file, and the way to the proxy.
    if door is None or door[1] is None:
        return []
    return [sys.base_prefix, FORWARDER, os.path.dirname(door[1])]


def _forwarder(door: Door | None) -> list[str]:
    if door is None or door[1] is None:
        return []
    return [os.path.realpath(sys.executable), "-I", "-S", FORWARDER, door[1], str(door[0])]


def _mounts(policy: Policy, forwarding: list[str]) -> Iterator[str]:
    # A parent comes before its contents, or it would hide them.
    # What is protected is put back afterwards; what is there already can also be kept from being changed.
    kept = [path for path in policy.protected if os.path.realpath(path) == path and os.path.exists(path)]
    binds = dict.fromkeys((*forwarding, *policy.readable()), "--ro-bind") | dict.fromkeys(policy.read_write, "--bind")
    binds |= dict.fromkeys(kept, "--ro-bind")
    sources = {path: new_objects(policy, path) for path in policy.objects}
    sources |= {shown_objects(path): path for path in policy.objects}
    # What is mounted cannot be renamed, so the folders around them are as well.
    around = (above for path in policy.objects for above in parents(folder_of(path, policy.read_write), path))
    binds |= dict.fromkeys((*policy.objects, *around), "--bind")
    binds |= dict.fromkeys(map(shown_objects, policy.objects), "--ro-bind")
    for path in sorted(binds, key=lambda path: (path.count("/"), path)):
        if binds[path] == "--ro-bind" and os.path.islink(path):
            yield from _link(path)
        else:
            yield from (binds[path], sources.get(path, path), path)


def _link(path: str) -> Iterator[str]:
    target = os.readlink(path)
    inside_usr = os.path.realpath(path).startswith("/usr/")
    yield from ("--symlink", target, path) if inside_usr else ("--ro-bind", os.path.realpath(path), path)


def _counted(policy: Policy) -> list[str]:
    # Without a uid of its own the run is counted in its user namespace, which only a program inside can limit.
    if policy.uid is not None or policy.limits.processes is None or not os.access(PRLIMIT, os.X_OK):
        return []
    return [PRLIMIT, f"--nproc={policy.limits.processes}:{policy.limits.processes}", "--"]
