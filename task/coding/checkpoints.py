"""The checkpoints of one coding task: its folder held for it alone, a snapshot after each step, and the way back."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from task.coding.diffs import SHOWN, FileDiff, file_diffs
from task.coding.snapshots import Entry, Pair, Snapshot, SnapshotError, Snapshots, changed, is_index, make_private
from task.coding.state import TaskState, record
from task.errors import Conflict
from task.permissions.icerc import plain
from task.runs.events import Undone
from task.store.processes import BEAT_SECONDS
from task.store.records import Run
from task.store.store import NOTE, SNAPSHOTS, Store
from task.utils.folders import delete

ALIVE_SECONDS = 3 * BEAT_SECONDS  # a busy process shows late that it is alive
LENDING = 3  # earlier tasks of the folder whose contents are used again
TEMPORARY = ".dial-agent-undo"  # at the top of the tree while a file is written
NAMED = 10  # paths in a refusal
WRITABLE = 0o700
KEPT = ("file", "link", "folder")  # what can be made again
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INDEX = struct.Struct(">4sLL")

Leg = tuple[Snapshot, Snapshot]


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


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """What undo will change: `steps` are the paths with what is there now and what was there before the run.

    Others have changed `others` since the run; `lost` cannot be made again, for the reason given.
    """

    steps: Mapping[str, Pair]
    others: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict[str, str])


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


def run_changes(legs: Sequence[Leg]) -> tuple[dict[str, Pair], frozenset[str]]:
    """What a run has changed from its first to its last leg, and the paths that others changed in between."""
    found, between = dict[str, Pair](), set[str]()
    for first, last in legs:
        for path, (before, after) in changed(first, last).items():
            original, left = found.get(path, (before, before))
            if left != before:
                between.add(path)
            found[path] = (original, after)
    return {path: pair for path, pair in found.items() if pair[0] != pair[1]}, frozenset(between)


def with_tail(last: Snapshot, now: Snapshot, alive_ns: int) -> Snapshot:
    """The tree as an interrupted run has left it: what was changed until `alive_ns` is its work."""
    entries = dict(last.entries)
    for path, (_, after) in changed(last, now).items():
        place, there = path, after
        while there is None and place:  # what was removed has changed the folder it was in
            place = place.rpartition("/")[0]
            there = now.entries.get(place)
        if (there.changed_ns if there is not None else now.changed_ns) > alive_ns:
            continue
        if after is None:
            del entries[path]
        else:
            entries[path] = after
    return replace(now, id="", entries=entries)


def planned_undo(legs: Sequence[Leg], now: Snapshot, snapshots: Snapshots) -> UndoPlan:
    """What undoing the run would change in the tree as it is now."""
    changes, between = run_changes(legs)
    steps, others, lost = dict[str, Pair](), list[str](), dict[str, str]()
    for path, (before, after) in changes.items():
        there = now.entries.get(path)
        if there == before:
            continue
        if before is not None and before.kind not in KEPT:
            lost[path] = before.content.partition(":")[0] if before.kind == "opaque" else before.kind
            continue
        steps[path] = (there, before)
        if path in between or not (there == after or _same_index(path, there, after, snapshots)):
            others.append(path)
    return UndoPlan(steps, tuple(others), lost)


def undo(plan: UndoPlan, snapshots: Snapshots, *, force: bool = False) -> tuple[str, ...]:
    """Make the paths what they were; the folders that stay because of what others put into them.

    Interrupted, it is simply called again.

    Raises:
        Conflict: others have changed some of them since; nothing is touched.
        OSError: the folder cannot be written.
    """
    if plan.others and not force:
        more = f" and {len(plan.others) - NAMED} more" if len(plan.others) > NAMED else ""
        names = ", ".join(map(plain, plan.others[:NAMED]))
        raise Conflict(
            f"somebody has changed {names}{more} since the run. Look at that; --force takes it back all the same."
        )
    top = os.open(snapshots.workspace, FOLDER)
    steps, stay = sorted(plan.steps.items()), set[str]()
    try:
        with suppress(FileNotFoundError, IsADirectoryError):  # of an undo that was killed while it wrote a file
            os.unlink(TEMPORARY, dir_fd=top)
        # A folder that cannot be written cannot be emptied or filled; its mode is the last thing that is restored.
        for path, _ in steps:
            with suppress(FileNotFoundError, NotADirectoryError), _parent(top, path) as (folder, name):
                mode = os.lstat(name, dir_fd=folder).st_mode
                if stat.S_ISDIR(mode):
                    os.chmod(name, stat.S_IMODE(mode) | WRITABLE, dir_fd=folder)
        for path, (there, before) in reversed(steps):
            if there is not None and not _removed(top, path, there, before):
                stay.add(path)
        for path, (_, before) in steps:
            if before is not None and path not in stay:
                _make(top, path, before, snapshots)
        for path, (_, before) in reversed(steps):
            if before is not None and before.kind == "folder":
                with _parent(top, path) as (folder, name):
                    os.chmod(name, before.mode, dir_fd=folder)
    finally:
        os.close(top)
    return tuple(sorted(stay))


def _removed(top: int, path: str, there: Entry, before: Entry | None) -> bool:
    # Whether the way is free for what was there before.
    if before is not None and before.kind == there.kind:
        return True
    with suppress(FileNotFoundError, NotADirectoryError), _parent(top, path) as (folder, name):
        if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            os.unlink(name, dir_fd=folder)
        elif there.kind != "folder" and before is None:
            delete(name, folder)
        elif before is None or before.kind != "folder":
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
    return True


def _make(top: int, path: str, before: Entry, snapshots: Snapshots) -> None:
    with _parent(top, path, create=True) as (folder, name):
        if before.kind == "folder":
            with suppress(FileExistsError):
                os.mkdir(name, WRITABLE, dir_fd=folder)
            return
        if before.kind == "link":
            os.symlink(before.content, TEMPORARY, dir_fd=top)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(TEMPORARY, flags, 0o600, dir_fd=top), "wb") as file:
                file.write(snapshots.content(before))
                file.flush()
                os.fchmod(file.fileno(), before.mode)
        os.replace(TEMPORARY, name, src_dir_fd=top, dst_dir_fd=folder)


@contextmanager
def _parent(top: int, path: str, *, create: bool = False) -> Generator[tuple[int, str]]:
    # The open folder that the path is in, followed through no link, and its name there.
    *above, name = path.split("/")
    handle = os.dup(top)
    try:
        for part in above:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
            inner = os.open(part, FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle, name
    finally:
        os.close(handle)


def _same_index(path: str, one: Entry | None, other: Entry | None, snapshots: Snapshots) -> bool:
    # Whether two of Git's indexes name the same contents: `git status` alone writes new times into one.
    if not is_index(path) or one is None or other is None:
        return False
    try:
        return _indexed(snapshots.content(one)) == _indexed(snapshots.content(other))
    except (ValueError, struct.error, SnapshotError):
        return False


def _indexed(index: bytes) -> list[bytes]:
    # Source: Git, index-format: 40 bytes of times, owner and size around the mode, 20 of the digest, 2 of flags, name.
    sign, version, count = _INDEX.unpack_from(index)
    if sign != b"DIRC" or version not in (2, 3):
        raise ValueError(version)
    found, place = list[bytes](), _INDEX.size
    for _ in range(count):
        end = index.index(b"\0", place + 62)
        found.append(index[place + 24 : place + 28] + index[place + 40 : end])
        place += (end - place + 8) // 8 * 8
    return found
