"""Which processes share the store and still live: what a dead one left unfinished can be told."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from task.store import tables
from task.store.store import Database
from task.store.wire import new_id

BEAT_SECONDS = 5.0
LEASE_SECONDS = 30.0
_processes = tables.processes


@dataclass(frozen=True, slots=True)
class Processes:
    """This process's place among those that share the store. A process that has not been seen for 30 s is dead."""

    database: Database
    clock: Callable[[], float]
    own_id: str = field(default_factory=lambda: new_id("proc", 16))

    async def enter(self) -> None:
        row = self._row()
        await self.database.write(lambda connection: connection.execute(insert(_processes), row))

    async def beat(self) -> None:
        row = self._row()
        seen = update(_processes).where(_processes.c.id == self.own_id).values(seen_at=row["seen_at"])

        def work(connection: Connection) -> None:
            if not connection.execute(seen).rowcount:
                connection.execute(insert(_processes), row)  # taken for dead: it was held up for long

        await self.database.write(work)

    async def leave(self) -> None:
        own = delete(_processes).where(_processes.c.id == self.own_id)
        await self.database.write(lambda connection: connection.execute(own))

    async def living(self) -> set[str]:
        """The ids of the processes that live, this one among them."""
        rows = await self.database.read(lambda connection: connection.execute(select(_processes)).all())
        since = self.clock() - LEASE_SECONDS
        return {self.own_id, *(row.id for row in rows if row.seen_at >= since and not _known_dead(row.place))}

    async def forget(self, living: set[str]) -> None:
        dead = delete(_processes).where(_processes.c.id.not_in(living))
        await self.database.write(lambda connection: connection.execute(dead))

    def _row(self) -> dict[str, Any]:
        return {"id": self.own_id, "place": _place(os.getpid()), "seen_at": self.clock()}


def _place(pid: int) -> str:
    return f"{socket.gethostname()} {pid} {_started(pid)}"


def _known_dead(place: str) -> bool:
    host, pid, _ = place.rsplit(" ", 2)
    return host == socket.gethostname() and place != _place(int(pid))


def _started(pid: int) -> str:
    """When the process began, in ticks since the machine did; with it a number that was given again is noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return "gone" if Path("/proc/self/stat").exists() else "unknown"
