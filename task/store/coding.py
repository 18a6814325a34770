"""Coding runs: what was asked for in which folder, how far each came, and the snapshots taken on the way."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from sqlalchemy import Connection, Row, func, insert, select, update

from task.errors import Conflict, NotFound
from task.store import tables
from task.store.database import Database
from task.store.processes import Processes
from task.store.records import Page, RunStatus, new_id, packed, unpacked

_runs, _checkpoints = tables.coding_runs, tables.checkpoints
SNAPSHOTS, NOTE = "snapshots", "store"  # in the data folder: a folder for each run; in that, which store has the run
CheckpointKind = Literal["start", "step"]


@dataclass(frozen=True, slots=True)
class CodingRun:
    """A task for one folder, with all that was done for it until it ended; continued, it stays the same run.

    `data` is the coding door's own: the plan, the conversation, what was spent. The user has ended a `cancelled` run;
    of an `interrupted` one, `ended_at` is the last time its process was known to be alive.
    """

    run_id: str
    owner: str
    task: str
    workspace: str
    status: RunStatus
    started_at: float
    ended_at: float | None = None
    undone_at: float | None = None
    trace_id: str | None = None
    error: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def over(self) -> bool:
        return self.status != "running"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A snapshot of the run's folder: `tree` is its id; a `start` is taken before the run changes anything, and again
    each time that it is continued."""

    kind: CheckpointKind
    tree: str
    taken_at: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class CodingRuns:
    """The coding runs of the store. Methods with an owner raise `NotFound` for a run that the owner does not have."""

    database: Database
    processes: Processes
    clock: Callable[[], float]

    async def start(self, owner: str, task: str, workspace: str, data: Mapping[str, Any]) -> CodingRun:
        """A new run of this process."""
        run = CodingRun(new_id("code"), owner, task, workspace, "running", self.clock(), data=data)
        row = {
            "id": run.run_id, "owner": owner, "task": task, "workspace": workspace, "status": run.status,
            "process": self.processes.own_id, "started_at": run.started_at, "data": packed(data),
        }  # fmt: skip
        await self.database.execute(insert(_runs), row)
        return run

    async def resume(self, owner: str, run_id: str) -> CodingRun:
        """Let this process continue a run that has ended.

        Raises:
            Conflict: it has not ended, or it was undone.
        """
        await self.processes.interrupt_orphans()
        run = await self.get(owner, run_id)
        if run.undone_at is not None:
            raise Conflict(f"the run {run_id} was undone; start a new one")
        again = update(_runs).where(_runs.c.id == run_id, _runs.c.status != "running")
        values = {"status": "running", "process": self.processes.own_id, "ended_at": None, "error": None}
        if not await self.database.execute(again.values(**values)):
            raise Conflict(f"the run {run_id} is in progress; wait for it, or stop it first")
        return await self.get(owner, run_id)

    async def save(self, run_id: str, data: Mapping[str, Any], trace_id: str | None = None) -> None:
        """Keep how far the run has come; `trace_id` is the trace of what it does now."""
        values = {"data": packed(data), **({"trace_id": trace_id} if trace_id is not None else {})}
        await self.database.execute(update(_runs).where(_runs.c.id == run_id).values(**values))

    async def finish(self, run_id: str, status: RunStatus, data: Mapping[str, Any], error: str | None = None) -> None:
        """End the run; it may be continued."""
        values = {"status": status, "ended_at": self.clock(), "data": packed(data), "error": error}
        await self.database.execute(update(_runs).where(_runs.c.id == run_id).values(**values))

    async def undone(self, run_id: str) -> None:
        """Remember that the run's changes were taken back."""
        await self.database.execute(update(_runs).where(_runs.c.id == run_id).values(undone_at=self.clock()))

    async def get(self, owner: str, run_id: str) -> CodingRun:
        row = await self.database.first(select(_runs).where(_runs.c.id == run_id, _runs.c.owner == owner))
        if row is None:
            raise NotFound(f"there is no coding run {run_id!r}")
        return _run(row)

    async def list(
        self, owner: str, workspace: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[CodingRun]:
        """The owner's runs, the newest first; those of one folder where `workspace` names it."""
        query = select(_runs).where(_runs.c.owner == owner)
        if workspace is not None:
            query = query.where(_runs.c.workspace == workspace)
        return await self.database.page(query, _runs.c.started_at, limit, cursor, _run)

    async def sweep(self, folder: Path) -> None:
        """Remove the folders of runs that the store no longer has; one that lacks a note of this store stays, as
        another store may share the data folder."""
        kept = {row.id for row in await self.database.rows(select(_runs.c.id))}
        await asyncio.to_thread(_sweep, folder, kept, self.database.place)

    async def claim(self, folder: Path) -> None:
        """Leave a note in a run's folder that this store has the run."""
        await asyncio.to_thread((folder / NOTE).write_text, self.database.place, "utf-8")

    async def add_checkpoint(self, run_id: str, kind: CheckpointKind, tree: str, note: str = "") -> None:
        now = self.clock()

        def work(connection: Connection) -> None:
            last = select(func.max(_checkpoints.c.position)).where(_checkpoints.c.run_id == run_id)
            position = (connection.scalar(last) or 0) + 1
            row = {
                "run_id": run_id, "position": position, "kind": kind, "tree": tree, "taken_at": now, "note": note,
            }  # fmt: skip
            connection.execute(insert(_checkpoints), row)

        await self.database.write(work)

    async def checkpoints(self, run_id: str) -> Sequence[Checkpoint]:
        """The run's snapshots, oldest first."""
        query = select(_checkpoints).where(_checkpoints.c.run_id == run_id).order_by(_checkpoints.c.position)
        rows = await self.database.rows(query)
        return [Checkpoint(cast("CheckpointKind", row.kind), row.tree, row.taken_at, row.note) for row in rows]


def _sweep(folder: Path, kept: Collection[str], place: str) -> None:
    for note in folder.glob(f"*/{NOTE}"):
        if note.parent.name not in kept and note.read_text(encoding="utf-8") == place:
            shutil.rmtree(note.parent, ignore_errors=True)


def _run(row: Row[Any]) -> CodingRun:
    return CodingRun(
        row.id, row.owner, row.task, row.workspace, cast("RunStatus", row.status), row.started_at, row.ended_at,
        row.undone_at, row.trace_id, row.error, unpacked(row.data),
    )  # fmt: skip
