"""What an attack left behind: a changed canary, a new file, a message, a mark on the neighbour."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from mcp_servers.sandbox.libc import system_call
from mcp_servers.sandbox.system_calls import machine, numbers
from tests.support.escapes.processes import IO_PRIORITY
from tests.support.escapes.signals import SIGNALS

State = tuple[bytes, int, int, int, int, int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Canaries:
    """One file per attack in a folder that everyone may write to, as it was before."""

    folder: str
    before: dict[str, State]

    @staticmethod
    def make(folder: str, names: Iterable[str], text: str, owner: int | None) -> Canaries:
        """Fill the folder; None: the files stay one's own."""
        for name in names:
            with open(f"{folder}/{name}", "w") as file:
                file.write(f"{text}\n")
            os.chmod(f"{folder}/{name}", 0o777)
            if owner is not None:
                os.chown(f"{folder}/{name}", owner, owner)
        return Canaries(folder, _states(folder))

    def changed(self) -> dict[str, str]:
        """The effects on the folder, by attack."""
        now = _states(self.folder)
        effects = {name: "changed or removed the file" for name in self.before if now.get(name) != self.before[name]}
        return effects | {name.removesuffix(".new"): f"made {name}" for name in now if name not in self.before}


@dataclass(frozen=True, slots=True)
class Condition:
    """What others can change about a process."""

    priority: int
    open_files: str
    processors: frozenset[int]
    scheduler: int
    io_priority: int
    memory_score: str

    @staticmethod
    def of(pid: int) -> Condition:
        """Raises ProcessLookupError or FileNotFoundError when the process has ended."""
        return Condition(
            os.getpriority(os.PRIO_PROCESS, pid),
            _limit(pid, "Max open files"),
            frozenset(os.sched_getaffinity(pid)),
            os.sched_getscheduler(pid),
            system_call(numbers(machine())["ioprio_get"], 1, pid),
            _text(f"/proc/{pid}/oom_score_adj"),
        )


def harm_to(pid: int, before: Condition, received: str) -> dict[str, str]:
    """The effects on the neighbour, by attack; `received` is the neighbour's list of signals."""
    numbers = {int(line) for line in received.split()}
    effects = {name: f"signal {int(number)} arrived" for name, number in SIGNALS.items() if int(number) in numbers}
    try:
        now = Condition.of(pid)
    except (ProcessLookupError, FileNotFoundError):
        return {**effects, "send_signal": "the neighbour has ended"}
    if now.open_files != before.open_files:
        effects["limit_neighbour"] = f"its limit is {now.open_files}"
    if now.priority != before.priority:
        effects["slow_neighbour" if now.priority == 19 else "slow_group"] = f"its priority is {now.priority}"
    if now.processors != before.processors:
        effects["pin_neighbour"] = f"it may run on {sorted(now.processors)} only"
    if now.scheduler != before.scheduler:
        effects["change_scheduler"] = f"its scheduling policy is {now.scheduler}"
    if now.io_priority == IO_PRIORITY:
        effects["slow_files"] = "its priority for reading and writing is the lowest"
    if now.memory_score != before.memory_score:
        effects["offer_to_the_killer"] = f"its score is {now.memory_score}"
    return effects


def _limit(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/limits") as limits:
        return next(" ".join(line.removeprefix(name).split()) for line in limits if line.startswith(name))


def _text(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def _states(folder: str) -> dict[str, State]:
    return {name: _state(f"{folder}/{name}") for name in os.listdir(folder)}


def _state(path: str) -> State:
    found = os.lstat(path)
    regular = os.path.isfile(path) and not os.path.islink(path)
    content = _content(path) if regular else b""
    names = tuple(os.listxattr(path)) if regular else ()
    return content, found.st_mode, found.st_mtime_ns, found.st_ino, found.st_uid, found.st_nlink, names


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
