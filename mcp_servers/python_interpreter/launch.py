"""Start a kernel's process in the sandbox, and end everything it has started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mcp_servers.python_interpreter.places import Place

KILL_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 0.01


class Launcher(Protocol):
    """How kernels are confined; `tier` names it."""

    @property
    def tier(self) -> str: ...

    def command(self, place: Place, argv: list[str], environment: Mapping[str, str]) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class PlainLauncher:
    """No confinement at all: only for who asks for it explicitly."""

    tier: str = "none"

    def command(self, place: Place, argv: list[str], environment: Mapping[str, str]) -> list[str]:
        return argv


async def end_everything(group: int, place: Place) -> None:
    """Kill the kernel's process group, then whatever its code has moved out of it.

    With an own uid everything that runs under it goes. Without, it is found by the folder of the kernel that stands in
    its environment, which only code that wants to hide can have changed.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    async with asyncio.timeout(KILL_SECONDS):
        while left := list(_stragglers(place)):
            if place.uid is not None:
                await _kill_user(place.uid)
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def _kill_user(uid: int) -> None:
    # kill(-1) takes all processes of a user at once: a fork bomb cannot run away from it.
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "kill -KILL -1", user=uid, group=uid)
    await process.wait()


def _stragglers(place: Place) -> Iterator[int]:
    mark = f"HOME={place.home}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            if _is_zombie(entry.path):
                continue
            if place.uid is not None and entry.stat().st_uid == place.uid:
                yield int(entry.name)
            elif place.uid is None and mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def _is_zombie(folder: str) -> bool:
    state = Path(folder, "stat").read_bytes().rpartition(b")")[2].split()[0]
    return state in (b"Z", b"X")
