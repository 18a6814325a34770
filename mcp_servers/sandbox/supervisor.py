"""Stay beside a run until all its processes have ended: watch what it uses, end what it leaves behind."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mcp_servers.sandbox import process
from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.libc import PR_SET_CHILD_SUBREAPER, prctl
from mcp_servers.sandbox.marks import GIVE_UP_SECONDS, kill_seen, marked, new_mark
from mcp_servers.sandbox.policy import MIB, Door, Limits, Policy, folder_of
from mcp_servers.sandbox.protected import Protected

Start = Callable[[Policy, int, Door | None], None]

WATCH_SECONDS, GRACE_SECONDS = 0.2, 0.05
SIGNALLED = 128  # an exit code is this and the signal's number
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_AWAITED = {signal.SIGCHLD, *_ENDING}


def supervise(policy: Policy, start: Start, parent: int) -> int:
    """Run the program in a child, by `start(policy, parent, proxy's door)`; its exit code when nothing of it is left.

    A signal that asks this process to end ends the run. A run that uses too much is killed.

    Raises:
        SandboxError: a protected path is too large or could not be put back, the run could not be ended, or in the
            child: it cannot be started.
    """
    protected = [Protected.of(folder_of(path, policy.read_write), path) for path in policy.protected]
    if policy.die_with_parent:
        process.die_with(parent, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    policy = policy._replace(mark=policy.mark or new_mark(), die_with_parent=True)
    objects = _objects(policy) if policy.objects else []
    code = _ran_with_network(policy, start) if policy.network else _ran(policy, start, None)
    try:
        _put_back(protected)
    finally:
        try:
            for one in objects:
                one.end()
        except OSError as error:
            raise SandboxError(f"git's objects were changed, and could not be put back: {error}") from None
    return code


def _objects(policy: Policy) -> list[Any]:
    from mcp_servers.sandbox.objects import Objects

    found = [Objects(policy, path) for path in policy.objects]
    for one in found:
        one.begin()
    return found


def _put_back(protected: list[Protected]) -> None:
    failed: list[str] = []
    for one in protected:
        try:
            if one.put_back():
                _note(f"{one.path} is protected: it was changed, and is as before again")
        except OSError as error:
            failed.append(str(error))
    if failed:
        raise SandboxError(f"what is protected was changed, and could not be put back: {'; '.join(failed)}")


def _ran_with_network(policy: Policy, start: Start) -> int:
    from mcp_servers.sandbox import proxy

    with proxy.opened(policy) as (serve, door):
        environment = {**(policy.environment or {}), **proxy.variables(door[0])}
        return _ran(policy._replace(environment=environment), start, door, serve)


def _ran(policy: Policy, start: Start, door: Door | None, serve: Callable[[], None] | None = None) -> int:
    assert policy.mark is not None
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        start(policy, parent, door)
    if serve is not None:
        serve()  # after the fork: a thread would not be in the child, but its locks might
    code = _watched(child, policy.mark, policy.limits)
    _end_rest(policy.mark)
    return code


def _watched(child: int, mark: int, limits: Limits) -> int:
    due = time.monotonic() + WATCH_SECONDS
    while True:
        received = signal.sigtimedwait(_AWAITED, max(0.0, due - time.monotonic()))
        if received is not None and received.si_signo in _ENDING:
            return SIGNALLED + received.si_signo
        code = _reaped(child)
        if code is not None:
            return code
        if time.monotonic() >= due:
            excess = _excess(mark, limits)
            if excess:
                _note(f"the run was ended: it had {excess}")
                return SIGNALLED + signal.SIGKILL
            due = time.monotonic() + WATCH_SECONDS


def _reaped(child: int) -> int | None:
    """Reap every process that has ended, orphans of the run too; the exit code of the child if it is among them."""
    code: int | None = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
    return SIGNALLED - code if code is not None and code < 0 else code


def _excess(mark: int, limits: Limits) -> str | None:
    pids = marked(mark)
    if limits.processes is not None and len(pids) > limits.processes:
        return f"more than {limits.processes} processes"
    if limits.run_memory is None:
        return None
    # What processes share is counted for each of them at first, since the exact figure takes the kernel long.
    for kinds, file in (((b"RssAnon:", b"RssShmem:"), "status"), ((b"Pss:",), "smaps_rollup")):
        if sum(_memory(f"/proc/{pid}/{file}", kinds) for pid in pids) <= limits.run_memory:
            return None
    return f"more than {limits.run_memory // MIB} MiB of memory"


def _memory(path: str, kinds: tuple[bytes, ...]) -> int:
    try:
        with open(path, "rb") as lines:
            return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))
    except OSError:  # it has ended
        return 0


def _end_rest(mark: int) -> None:
    """End what the run has left; orphans are children of this process, so none can be overlooked."""
    started = time.monotonic()
    while _has_children():
        passed = time.monotonic() - started
        if passed > GRACE_SECONDS:  # in bubblewrap they end by themselves, soon after the first
            kill_seen(mark)
        if passed > GIVE_UP_SECONDS:
            raise SandboxError("some processes of the run could not be ended")
        signal.sigtimedwait({signal.SIGCHLD}, GRACE_SECONDS)


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _note(text: str) -> None:
    print(f"sandbox: {text}", file=sys.stderr, flush=True)
