"""The checkpoints of one coding task: its folder held for it alone, a snapshot after each step, and the way back."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Self

from task.coding.diffs import SHOWN, FileDiff, file_diffs
from task.coding.state import TaskState, record
from task.errors import Conflict
from task.runs.events import Checkpoint, Undone
from task.store.processes import BEAT_SECONDS
from task.store.records import Run
from task.store.store import NOTE, SNAPSHOTS, Store
from task.tools.workspace.root import held_alone
from task.tools.workspace.snapshots import Snapshot, Snapshots, changed
from task.tools.workspace.undo import Leg, UndoPlan, run_changes, take_back

ALIVE_SECONDS = 3 * BEAT_SECONDS  # a busy process shows late that it is alive
LENDING = 3  # earlier tasks of the folder whose contents are used again


@dataclass(slots=True)
class Checkpoints:
    """The snapshots of a task's folder, taken in its order; `run` is as it was before this process continues it.

    Each of the `legs` is what the folder was when the task was started or continued, and what it was in the end.
    Callers that take snapshots or undo are inside `held_alone`.
    """

    store: Store
    run: Run
    snapshots: Snapshots
    legs: list[Leg] = field(default_factory=list[Leg])

    @classmethod
    async def open(cls, store: Store, task: TaskState, data_dir: Path) -> Self:
        """The task's checkpoints so far.

        Raises:
            SnapshotError: they are gone.
        """
        folder = data_dir / SNAPSHOTS
        lenders = await store.runs.list(task.run.owner, limit=LENDING + 1, kind="coding", folder=str(task.workspace))
        earlier = [folder / run.run_id for run in lenders.items if run.run_id != task.run.run_id]
        snapshots = Snapshots(task.workspace, folder / task.run.run_id, earlier, data_dir)
        return cls(store, task.run, snapshots, [(snapshots.load(one), snapshots.load(last)) for one, last in task.legs])

    async def resume(self, task: TaskState) -> None:
        """Let this process continue the task. Whatever becomes of that, the last work of a killed process is kept.

        Raises:
            Conflict: the task is in progress or was undone, or another works in the folder.
        """
        if task.undone_at is not None:
            raise Conflict(f"the run {self.run.run_id} was undone; start a new one")
        with held_alone(task.workspace):
            tail = await self._keep_tail()
        self.run = task.run = await self.store.runs.resume(self.run)
        if tail is not None:
            record(self.store, self.run, Checkpoint(tail.id, start=False))

    async def start(self) -> Snapshot:
        """Keep the folder before the task changes it, or continues to.

        The snapshots of tasks that the store no longer has are removed.

        Raises:
            SnapshotError: the folder cannot be kept.
        """
        folder, last = self.snapshots.folder, self.legs[-1][1] if self.legs else None
        await self.store.sweep(folder.parent)
        for private in (folder.parent, folder):
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / NOTE).write_text(self.store.database.place, "utf-8")
        snapshot = await asyncio.to_thread(self.snapshots.take, last)
        self.legs.append((snapshot, snapshot))
        return snapshot

    async def step(self) -> Snapshot:
        """Keep what a step of the task has made of the folder.

        Raises:
            SnapshotError: it cannot be kept: the task must not continue, and can be undone.
        """
        first, last = self.legs[-1]
        snapshot = await asyncio.to_thread(self.snapshots.take, last)
        self.legs[-1] = (first, snapshot)
        return snapshot

    async def _keep_tail(self) -> Snapshot | None:
        # What a killed process did after its last checkpoint, and nothing of any other; its contents are not kept, for
        # it may have made too much.
        if self.run.status != "interrupted" or not self.legs or self.run.ended_at is None:
            return None
        first, last = self.legs[-1]
        alive_ns = int((self.run.ended_at + ALIVE_SECONDS) * 1e9)
        now = await asyncio.to_thread(self.snapshots.take, last, keeps=False)
        tail = await asyncio.to_thread(self.snapshots.keep, with_tail(last, now, alive_ns))
        self.legs[-1] = (first, tail)
        return tail if tail.id != last.id else None

    @property
    def changed_files(self) -> bool:
        """Whether the task has changed any file so far, those of Git included."""
        items = (item for pair in run_changes(self.legs)[0].values() for item in pair)
        return any(item is not None and item.kind in SHOWN for item in items)

    async def diffs(self) -> list[FileDiff]:
        """What the task has changed so far, up to its last checkpoint."""
        return await asyncio.to_thread(file_diffs, run_changes(self.legs)[0], self.snapshots.content)

    async def undo(self, *, force: bool = False) -> UndoPlan:
        """Take the task back.

        Raises:
            Conflict: the task is in progress, or others have changed since what it had changed, and it is not forced.
            SnapshotError: its snapshots are gone, or the folder cannot be read or written. Safe to retry.
        """
        if not self.run.over:
            raise Conflict(f"the run {self.run.run_id} is in progress; wait for it, or stop it first")
        await self._keep_tail()
        plan = await asyncio.to_thread(take_back, self.legs, self.snapshots, force=force)
        run = await self.store.runs.resume(self.run)  # the event belongs to the run, which has ended
        record(self.store, run, Undone(self.store.processes.clock(), sorted(plan.steps), plan.stayed, plan.lost))
        await self.store.runs.finish(run, self.run.status, error=self.run.error)
        return plan


def with_tail(last: Snapshot, now: Snapshot, alive_ns: int) -> Snapshot:
    """The tree as an interrupted run has left it: what was changed until `alive_ns` is its work."""
    entries = dict(last.entries)
    for path, (_, after) in changed(last, now).items():
        # What was removed has changed the folder it was in.
        places = (path, *map(str, PurePosixPath(path).parents))
        there = next((now.entries[place] for place in places if place in now.entries), now)
        if there.changed_ns > alive_ns:
            continue
        entries.pop(path, None)
        if after is not None:
            entries[path] = after
    return replace(now, id="", entries=entries)
