"""Take changes of a folder back: by its snapshots before and after them, without touching what others changed since."""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from task.errors import Conflict
from task.permissions.icerc import plain
from task.tools.workspace.git import git, git_folders
from task.tools.workspace.root import Workspace
from task.tools.workspace.snapshots import Entry, Pair, Snapshot, SnapshotError, Snapshots, changed
from task.utils.folders import delete

TEMPORARY = ".dial-agent-undo"  # in a folder while one of its files is written
NAMED = 10  # paths in a refusal
WRITABLE = 0o700
KEPT = ("file", "link", "folder")  # what can be made again
FSCK = ("fsck", "--connectivity-only", "--no-dangling", "--no-progress")

Leg = tuple[Snapshot, Snapshot]


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """What undo will change: `steps` are the paths with what is there now and what was there before the run.

    Others have changed `others` since the run; `lost` cannot be made again, for the reason given. The folders `unread`
    were not looked into; once it is done, the folders `stayed` hold something of others.
    """

    steps: Mapping[str, Pair]
    others: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict[str, str])
    unread: tuple[str, ...] = ()
    stayed: tuple[str, ...] = ()


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


def planned_undo(legs: Sequence[Leg], now: Snapshot) -> UndoPlan:
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
        if path in between or there != after:
            others.append(path)
    unread = tuple(path for path, entry in legs[0][0].entries.items() if entry.kind == "ignored") if legs else ()
    return UndoPlan(steps, tuple(others), lost, unread)


def repository_faults(workspace: Path) -> dict[str, str]:
    """By git's folders in the workspace: what git finds missing in their repositories."""
    found = dict[str, str]()
    for folder in git_folders(workspace):
        done = git(workspace, f"--git-dir={folder}", *FSCK)
        if done.returncode and (folder / "objects").is_dir():
            found[str(folder.relative_to(workspace))] = os.fsdecode(done.stderr + done.stdout)[:200].strip()
    return found


def take_back(legs: Sequence[Leg], snapshots: Snapshots, *, force: bool = False) -> UndoPlan:
    """Take the changes of a run back; interrupted, it is simply called again.

    Raises:
        Conflict: others have changed since what the run had changed, and it is not forced; nothing is touched.
        SnapshotError: the snapshots are gone, or the folder cannot be read or written.
    """
    if not legs:
        return UndoPlan({})
    try:
        now = snapshots.take(legs[-1][1], keeps=False)
        plan = planned_undo(legs, now)
        stay = undo(plan, snapshots, force=force)
        left = planned_undo(legs, snapshots.take(now, keeps=False)).steps.keys() - stay
        if left:
            raise SnapshotError(f"Not all is undone: {some_of(sorted(left), NAMED)}. Undo again.")
        return replace(plan, lost={**plan.lost, **repository_faults(snapshots.workspace)}, stayed=stay)
    except OSError as error:
        where = f" {error.filename}" if isinstance(error.filename, str) else ""
        raise SnapshotError(f"Not all is undone:{where} {error.strerror}. Correct that and undo again.") from error


def undo(plan: UndoPlan, snapshots: Snapshots, *, force: bool = False) -> tuple[str, ...]:
    """Make the paths what they were; the folders that stay because of what others put into them.

    Interrupted, it is simply called again.

    Raises:
        Conflict: others have changed some of them since; nothing is touched.
        OSError: the folder cannot be written.
    """
    if plan.others and not force:
        names = some_of(plan.others, NAMED)
        raise Conflict(f"others have changed {names} since the run. Look at that; --force takes it back all the same.")
    steps, stay = sorted(plan.steps.items()), set[str]()
    with Workspace(snapshots.workspace) as tree:
        # A folder that cannot be written cannot be emptied or filled; its mode is the last thing that is restored.
        for path, _ in steps:
            with suppress(FileNotFoundError, NotADirectoryError), tree.parent(path) as (folder, name):
                mode = os.lstat(name, dir_fd=folder).st_mode
                if stat.S_ISDIR(mode):
                    os.chmod(name, stat.S_IMODE(mode) | WRITABLE, dir_fd=folder)
        for path, (there, before) in reversed(steps):
            if there is not None and not _cleared(tree, path, there, before):
                stay.add(path)
        for path, (_, before) in steps:
            if before is not None and path not in stay:
                _make(tree, path, before, snapshots)
        for path, (_, before) in reversed(steps):
            if before is not None and before.kind == "folder":
                with tree.parent(path) as (folder, name):
                    os.chmod(name, before.mode, dir_fd=folder)
    return tuple(sorted(stay))


def _cleared(tree: Workspace, path: str, there: Entry, before: Entry | None) -> bool:
    # Whether the way is free for what was there before: a file or a link replaces another in one step.
    with suppress(FileNotFoundError, NotADirectoryError), tree.parent(path) as (folder, name):
        is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
        if before is not None and is_folder == (before.kind == "folder"):
            return True
        if not is_folder:
            os.unlink(name, dir_fd=folder)
        elif there.kind != "folder" and before is None:
            delete(name, folder)
        else:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
    return True


def _make(tree: Workspace, path: str, before: Entry, snapshots: Snapshots) -> None:
    with tree.parent(path, make=True) as (folder, name):
        if before.kind == "folder":
            with suppress(FileExistsError):
                os.mkdir(name, WRITABLE, dir_fd=folder)
            return
        with suppress(FileNotFoundError):  # of an undo that was killed
            os.unlink(TEMPORARY, dir_fd=folder)
        if before.kind == "link":
            os.symlink(before.content, TEMPORARY, dir_fd=folder)
        else:
            with open(TEMPORARY, "xb", opener=lambda path, flags: os.open(path, flags, 0o600, dir_fd=folder)) as file:
                file.write(snapshots.content(before))
                file.flush()
                os.fchmod(file.fileno(), before.mode)
        os.replace(TEMPORARY, name, src_dir_fd=folder, dst_dir_fd=folder)


def some_of(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(plain, names[:most])) + more
