"""The checkpoints of one coding run: its folder held for it alone, a snapshot after each step, and the way back."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from task.coding.diffs import FileDiff, file_diffs
from task.coding.snapshots import Snapshot, SnapshotError, Snapshots, make_private
from task.coding.undo import Leg, Undoing, planned_undo, run_changes, undo, with_tail
from task.errors import Conflict
from task.store.coding import SNAPSHOTS, CodingRun, CodingRuns
from task.store.processes import BEAT_SECONDS

ALIVE_SECONDS = 3 * BEAT_SECONDS  # a busy process shows late that it is alive
LENDING = 3  # earlier runs of the folder whose contents are used again


@contextmanager
def held_alone(workspace: Path) -> Generator[None]:
    """Keep other runs out of the folder, of those around it and of those in it; a killed process holds nothing.

    Raises:
        Conflict: another run works there.
    """
    handles = list[int]()
    try:
        for place in (*reversed(workspace.parents), workspace):
            with suppress(PermissionError, FileNotFoundError):
                handles.append(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                _lock(handles[-1], alone=place == workspace)
        yield
    except BlockingIOError:
        raise Conflict(
            f"Another coding run works in {workspace}, or in a folder around or below it. Wait for it, or stop it."
        ) from None
    finally:
        for handle in handles:
            os.close(handle)


@dataclass(slots=True)
class Checkpoints:
    """The snapshots of a run's folder, taken in its order; `run` is as it was before this process continues it.

    `held_alone` is for whoever uses them."""

    store: CodingRuns
    run: CodingRun
    snapshots: Snapshots
    _legs: list[Leg] = field(default_factory=list[Leg])
    _lent: Snapshot | None = None

    @classmethod
    async def open(cls, store: CodingRuns, run: CodingRun, data_dir: Path) -> Checkpoints:
        """The run's checkpoints so far.

        Raises:
            SnapshotError: they are gone.
        """
        folder = data_dir / SNAPSHOTS
        page = await store.list(run.owner, run.workspace, LENDING + 1)
        others = [item.run_id for item in page.items if item.run_id != run.run_id]
        earlier = [folder / run_id for run_id in others]
        workspace = Path(run.workspace)
        found = cls(store, run, Snapshots(workspace, folder / run.run_id, earlier, without=data_dir))
        await found._load()
        found._lent = await _last_of(store, others[0], Snapshots(workspace, earlier[0])) if others else None
        return found

    async def start(self) -> None:
        """Keep the folder as it is before the run changes it, or continues to.

        The snapshots of runs that the store no longer has are removed.

        Raises:
            SnapshotError: the folder cannot be kept.
        """
        await self.keep_tail()
        await asyncio.to_thread(make_private, self.snapshots.folder)
        await self.store.claim(self.snapshots.folder)
        await self.store.sweep(self.snapshots.folder.parent)
        snapshot = await self._take(self._legs[-1][1] if self._legs else self._lent)
        await self.store.add_checkpoint(self.run.run_id, "start", snapshot.id)
        self._legs.append((snapshot, snapshot))

    async def step(self, note: str = "") -> bool:
        """Keep what a step of the run has made of the folder, and return whether it changed anything; `note` says
        which it was.

        Raises:
            SnapshotError: it cannot be kept: the run must not continue, and can be undone.
        """
        if not self._legs:  # nothing has begun
            return False
        first, last = self._legs[-1]
        snapshot = await self._take(last)
        self._legs[-1] = (first, snapshot)
        if snapshot.id != last.id:
            await self.store.add_checkpoint(self.run.run_id, "step", snapshot.id, note)
        return snapshot.id != last.id

    async def keep_tail(self) -> None:
        """Keep what a run that was killed did after its last checkpoint; nothing of any other run.

        Raises:
            SnapshotError: the folder cannot be read.
        """
        if self.run.status != "interrupted" or not self._legs or self.run.ended_at is None:
            return
        first, last = self._legs[-1]
        alive_ns = int((self.run.ended_at + ALIVE_SECONDS) * 1e9)
        tail = await asyncio.to_thread(self._tail, last, alive_ns)
        self._legs[-1] = (first, tail)
        if tail.id != last.id:
            await self.store.add_checkpoint(self.run.run_id, "step", tail.id, "interrupted")

    async def diffs(self) -> list[FileDiff]:
        """What the run has changed so far, up to its last checkpoint."""
        changes, _ = run_changes(self._legs)
        return await asyncio.to_thread(file_diffs, changes, self.snapshots.content)

    async def planned_undo(self) -> Undoing:
        """What taking the run back comes to, as the folder is now.

        Raises:
            Conflict: the run is in progress.
            SnapshotError: its snapshots are gone, or the folder cannot be read.
        """
        if not self.run.over:
            raise Conflict(f"the run {self.run.run_id} is in progress; wait for it, or stop it first")
        await self.keep_tail()
        if not self._legs:
            return Undoing({})
        now = await asyncio.to_thread(self.snapshots.look, self._legs[-1][1])
        return await asyncio.to_thread(planned_undo, self._legs, now, self.snapshots)

    async def undo(self, plan: Undoing, *, force: bool = False) -> Sequence[str]:
        """Take the run back; the folders that stay because of what somebody put into them.

        Raises:
            Conflict: somebody has changed since what the run had changed, and it is not forced.
            SnapshotError: the folder cannot be written, or a content is gone. Called again, it continues.
        """
        try:
            stay = await asyncio.to_thread(undo, plan, self.snapshots, force=force)
        except OSError as error:
            where = f" {error.filename}" if isinstance(error.filename, str) else ""
            raise SnapshotError(f"Not all is undone:{where} {error.strerror}. Correct that and undo again.") from error
        await self.store.undone(self.run.run_id)
        return stay

    async def _load(self) -> None:
        loaded: dict[str, Snapshot] = {}
        for item in await self.store.checkpoints(self.run.run_id):
            if item.tree not in loaded:
                loaded[item.tree] = await asyncio.to_thread(self.snapshots.load, item.tree)
            snapshot = loaded[item.tree]
            self._legs.append((snapshot if item.kind == "start" else self._legs.pop()[0], snapshot))

    def _tail(self, last: Snapshot, alive_ns: int) -> Snapshot:
        try:
            now = self.snapshots.take(last)
        except SnapshotError:  # the run has made too much to be kept, which can be undone all the same
            now = self.snapshots.look(last)
        return self.snapshots.keep(with_tail(last, now, alive_ns))

    async def _take(self, since: Snapshot | None) -> Snapshot:
        return await asyncio.to_thread(self.snapshots.take, since)


async def _last_of(store: CodingRuns, run_id: str, snapshots: Snapshots) -> Snapshot | None:
    kept = await store.checkpoints(run_id)
    with suppress(SnapshotError):
        return await asyncio.to_thread(snapshots.load, kept[-1].tree) if kept else None
    return None


def _lock(handle: int, *, alone: bool) -> None:
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # some network file systems cannot lock a folder
