"""The checkpoints of one coding task: its folder held for it alone, a snapshot after each step, and the way back."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from task.coding.diffs import SHOWN, FileDiff, file_diffs
from task.coding.snapshots import Snapshot, SnapshotError, Snapshots, is_index, make_private
from task.coding.state import TaskState, record
from task.coding.undo import Leg, UndoPlan, planned_undo, run_changes, undo, with_tail
from task.errors import Conflict
from task.runs.events import Undone
from task.store.processes import BEAT_SECONDS
from task.store.records import Run
from task.store.store import NOTE, SNAPSHOTS, Store

ALIVE_SECONDS = 3 * BEAT_SECONDS  # a busy process shows late that it is alive
LENDING = 3  # earlier tasks of the folder whose contents are used again


@contextmanager
def held_alone(workspace: Path) -> Generator[None]:
    """Keep other tasks out of the folder, of those around it and of those in it; a killed process holds nothing.

    Raises:
        Conflict: another task works there.
    """
    handles = list[int]()
    try:
        for place in (*reversed(workspace.parents), workspace):
            lock = fcntl.LOCK_EX if place == workspace else fcntl.LOCK_SH
            try:
                handles.append(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                fcntl.flock(handles[-1], lock | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(
                    f"Another coding run works in {workspace}, or in a folder around or below it. Wait for it, or stop "
                    "it."
                ) from None
            except OSError:
                pass  # a folder above may be closed, and some network file systems cannot lock a folder
        yield
    finally:
        for handle in handles:
            os.close(handle)


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
    async def open(cls, store: Store, task: TaskState, data_dir: Path) -> Checkpoints:
        """The task's checkpoints so far.

        Raises:
            SnapshotError: they are gone.
        """
        folder = data_dir / SNAPSHOTS
        lenders = await store.runs.list(task.run.owner, limit=LENDING + 1, kind="coding", folder=str(task.workspace))
        earlier = [folder / run.run_id for run in lenders.items if run.run_id != task.run.run_id]
        snapshots = Snapshots(task.workspace, folder / task.run.run_id, earlier, data_dir)

        def legs() -> list[Leg]:
            loaded, found = {tree: snapshots.load(tree) for _, tree in task.checkpoints}, list[Leg]()
            for start, tree in task.checkpoints:
                found.append((loaded[tree] if start else found.pop()[0], loaded[tree]))
            return found

        return cls(store, task.run, snapshots, await asyncio.to_thread(legs))

    async def start(self) -> Snapshot:
        """Keep the folder before the task changes it, or continues to.

        The snapshots of tasks that the store no longer has are removed.

        Raises:
            SnapshotError: the folder cannot be kept.
        """
        folder = self.snapshots.folder
        await asyncio.to_thread(make_private, folder)
        await asyncio.to_thread((folder / NOTE).write_text, self.store.database.place, "utf-8")
        await self.store.sweep(folder.parent)
        snapshot = await asyncio.to_thread(self.snapshots.take, self.legs[-1][1] if self.legs else None)
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

    async def keep_tail(self) -> Snapshot | None:
        """Keep what a task that was killed did after its last checkpoint, and nothing of any other task; None: nothing.

        Raises:
            SnapshotError: the folder cannot be read.
        """
        if self.run.status != "interrupted" or not self.legs or self.run.ended_at is None:
            return None
        first, last = self.legs[-1]
        alive_ns = int((self.run.ended_at + ALIVE_SECONDS) * 1e9)
        try:
            now = await asyncio.to_thread(self.snapshots.take, last)
        except SnapshotError:  # the task has made too much to be kept, which can be undone all the same
            now = await asyncio.to_thread(self.snapshots.take, last, keeps=False)
        tail = await asyncio.to_thread(self.snapshots.keep, with_tail(last, now, alive_ns))
        self.legs[-1] = (first, tail)
        return tail if tail.id != last.id else None

    @property
    def changed_files(self) -> bool:
        """Whether the task has changed any file so far, those of Git included: `git status` alone writes its index."""
        changes, _ = run_changes(self.legs)
        shown = [pair for path, pair in changes.items() if not is_index(path)]
        return any(item is not None and item.kind in SHOWN for pair in shown for item in pair)

    async def diffs(self) -> list[FileDiff]:
        """What the task has changed so far, up to its last checkpoint."""
        changes, _ = run_changes(self.legs)
        return await asyncio.to_thread(file_diffs, changes, self.snapshots.content)

    async def undo(self, *, force: bool = False) -> tuple[UndoPlan, Undone]:
        """Take the task back.

        Raises:
            Conflict: the task is in progress, or others have changed since what it had changed, and it is not forced.
            SnapshotError: its snapshots are gone, or the folder cannot be read or written. Safe to retry.
        """
        if not self.run.over:
            raise Conflict(f"the run {self.run.run_id} is in progress; wait for it, or stop it first")
        await self.keep_tail()
        plan, stay = UndoPlan({}), ()
        try:
            if self.legs:
                now = await asyncio.to_thread(self.snapshots.take, self.legs[-1][1], keeps=False)
                plan = await asyncio.to_thread(planned_undo, self.legs, now, self.snapshots)
                stay = await asyncio.to_thread(undo, plan, self.snapshots, force=force)
        except OSError as error:
            where = f" {error.filename}" if isinstance(error.filename, str) else ""
            raise SnapshotError(f"Not all is undone:{where} {error.strerror}. Correct that and undo again.") from error
        undone = Undone(self.store.processes.clock(), sorted(plan.steps), stay, plan.lost)
        run = await self.store.runs.resume(self.run)  # the event belongs to the run, which has ended
        record(self.store, run, undone)
        await self.store.runs.finish(run, self.run.status, error=self.run.error)
        return plan, undone
