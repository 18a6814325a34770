"""Start kernels in the sandbox, and end everything they have started."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mcp_servers import sandbox
from mcp_servers.python_interpreter.config import Config
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.sandbox import leftovers
from mcp_servers.sandbox.joining import first_inside
from mcp_servers.sandbox.policy import TierName
from mcp_servers.sandbox.tiers import Tier

ENDING_SECONDS = 10.0
NICE = 5  # the agent's answers take precedence over code


class NoSandbox(Exception):
    """No sandbox works on this machine, and running without one was not allowed."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """How kernels are confined here. `own_uids`: each may have a user id of its own."""

    tier: TierName
    own_uids: bool
    readable: tuple[str, ...]
    limits: sandbox.Limits

    @classmethod
    def find(cls, config: Config, found: Tier) -> Self:
        """The best of the tiers that this machine has, or the one that the configuration names.

        Raises:
            NoSandbox: there is none, or not that one.
        """
        tier: TierName = "none"
        if not config.unsafe:
            tier = found.name if config.tier == "auto" else config.tier
            if tier not in found.works or found.works[tier] is not None:
                raise NoSandbox("; ".join(f"{name}: {why}" for name, why in found.works.items() if why))
        readable = sandbox.python_paths(str(config.python))
        own_uids = found.own_uid and all(map(_open_to_all, readable))
        limits = sandbox.Limits(
            memory=config.limits.memory_bytes,
            file_bytes=config.limits.work_bytes,
            processes=config.limits.processes,
            nice=NICE,
        )
        return cls(tier, own_uids, readable, limits)

    def policy(self, place: KernelFolders, environment: Mapping[str, str]) -> sandbox.Policy:
        """What the kernel in `place` may do: it sees nothing else. All its processes carry the policy's mark."""
        return sandbox.Policy(
            workdir=str(place.work),
            read_write=(str(place.work), str(place.home), str(place.run)),
            read_only=self.readable,
            environment=environment,
            uid=place.uid,
            limits=self.limits,
            tier=self.tier,
            allow_unsafe=self.tier == "none",
            mark=sandbox.new_mark(),
        )


async def end_everything(group: int | None, mark: int, uid: int | None, bubblewrap: Process | None) -> None:
    """Kill every process of a kernel: its group, if it still leads one, and whatever its code has moved out of it."""
    if bubblewrap is not None and await _ended_with_its_namespace(bubblewrap):
        return
    if group is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    await asyncio.to_thread(_end_rest, mark, uid)


async def _ended_with_its_namespace(bubblewrap: Process) -> bool:
    # The system lets the first process of a namespace end last, and bubblewrap waits for it.
    first = first_inside(bubblewrap.pid) if bubblewrap.returncode is None else None
    if first is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(ENDING_SECONDS):
            return await bubblewrap.wait() >= 0
    return False


def abandoned(uids: range) -> set[int]:
    """Those of the uids that have processes, or files or objects in shared places; a killed server leaves them."""
    with os.scandir("/proc") as entries:
        running = {_owner(entry) for entry in entries if entry.name.isdecimal()}
    return {uid for uid in running | leftovers.owners() if uid in uids}


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_uid
    except OSError:  # it has just ended
        return -1


def _end_rest(mark: int, uid: int | None) -> None:
    if uid is not None:
        sandbox.kill_uid(uid)  # takes all at once: a fork bomb cannot run away from it
    else:
        sandbox.kill_marked(mark)


def _open_to_all(path: str) -> bool:
    place = Path(path).resolve()
    folders = [place, *place.parents] if place.is_dir() else list(place.parents)
    return all(folder.stat().st_mode & 0o001 for folder in folders)
