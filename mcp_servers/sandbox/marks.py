"""Find and end every process of a run, also those that left its process group, session or parent."""

import os
import signal
import time
from contextlib import suppress

from mcp_servers.sandbox.errors import SandboxError

GIVE_UP_SECONDS = 10.0
PAUSE_SECONDS = 0.002
QUIET_ROUNDS = 3
RESTLESS_ROUNDS = 40
CHASE_STEPS = 30


def new_mark() -> int:
    """A number for `Policy.mark` that no other run has."""
    # Not from `secrets`, whose import takes longer than the launcher's own start.
    return int.from_bytes(os.urandom(7)) + 2**61


def marked(mark: int) -> list[int]:
    """The process ids that carry the mark and are not dead yet, newest first."""
    # "Max file locks  SOFT  HARD  locks": the kernel ignores the limit and a run cannot change it.
    wanted = str(mark).encode()
    return [pid for pid in _processes() if _mark_of(pid) == wanted and not _is_dead(pid)]


def kill_marked(mark: int) -> int:
    """End every process of the run and wait until none is left; how many were ended.

    If the machine starts no processes meantime, a few scans are enough; otherwise one of the run may be missed, and it
    takes many.

    Raises:
        SandboxError: some could not be ended.
    """
    ended, quiet, restless = set[int](), 0, 0
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while quiet < QUIET_ROUNDS and restless < RESTLESS_ROUNDS:
        before = _last_started()
        found = kill_seen(mark)
        ended |= found
        restless = 0 if found else restless + 1
        quiet = quiet + 1 if not found and _last_started() == before else 0
        if time.monotonic() > deadline:
            if found:
                raise SandboxError(f"{len(found)} processes of the run could not be ended")
            break  # a busy machine, on which the scans take long
    return len(ended)


def kill_seen(mark: int) -> set[int]:
    """End the processes of the run that are seen in one scan; those that are started meanwhile may be missed."""
    wanted = str(mark).encode()
    return {pid for pid in (*_newest(), *_processes()) if _kill_if(pid, wanted)} | _chase(wanted)


def _chase(wanted: bytes) -> set[int]:
    """End processes that fork and exit faster than a list can be read: each is the newest for a moment."""
    ended: set[int] = set()
    last: list[int] = []
    for _ in range(CHASE_STEPS):
        newest = _newest()
        ended |= {pid for pid in newest if pid not in last and _kill_if(pid, wanted)}
        last = newest
    return ended


def end_all_of(uid: int) -> None:
    """Become the uid and end every process it has, in one call that no fork can outrun; for a process of its own.

    Raises:
        SandboxError: they did not end.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        # Dead processes count until they are reaped, so the result of the call is meaningless.
        if not any(_uid_of(pid) == uid and pid != os.getpid() and not _is_dead(pid) for pid in _processes()):
            return
        time.sleep(PAUSE_SECONDS)
    raise SandboxError(f"processes of uid {uid} could not be ended")


def _uid_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(b"Uid:"))
    except OSError:
        return None


def _processes() -> list[int]:
    return sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)


def _newest() -> list[int]:
    last = _last_started()
    return [last + 1, last, last - 1]


def _last_started() -> int:
    with open("/proc/loadavg", "rb") as figures:
        return int(figures.read().split()[-1])


def _kill_if(pid: int, wanted: bytes) -> bool:
    if _mark_of(pid) != wanted or _is_dead(pid):
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _mark_of(pid: int) -> bytes | None:
    try:
        with open(f"/proc/{pid}/limits", "rb") as limits:
            table = limits.read()
    except OSError:
        return None
    words = table[table.find(b"Max file locks") :].split(None, 5)
    return words[4] if len(words) > 4 else None


def _is_dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as figures:
            return figures.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True
