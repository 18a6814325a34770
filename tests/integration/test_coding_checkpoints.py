"""A run's checkpoints: what it changed in its folder, taken back without touching what somebody else has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from task.coding.checkpoints import Checkpoints, held_alone
from task.coding.diffs import whole
from task.coding.snapshots import Limits, SnapshotError, Snapshots, changed
from task.errors import Conflict, NotFound
from task.store.coding import CodingRun
from task.store.store import Retention, Store, open_store

OWNER = "local"
LONG_AGO = 1_000.0

Change = Callable[[Path], object]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await open_store(f"sqlite:///{tmp_path}/data/store.db", chores=False)
    yield store
    await store.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for path, text in (("main.py", "print(1)\n"), ("pkg/one.py", "one = 1\n"), (".git/HEAD", "ref: refs/heads/main\n")):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (folder / "empty").mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("main.py")
    (folder / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"\xff\x00binary")
    return folder


async def started(store: Store, workspace: Path, tmp_path: Path) -> Checkpoints:
    run = await store.coding.start(OWNER, "do it", str(workspace), {})
    checkpoints = await Checkpoints.open(store.coding, run, tmp_path / "data")
    await checkpoints.start()
    return checkpoints


async def opened(store: Store, run: CodingRun, tmp_path: Path) -> Checkpoints:
    return await Checkpoints.open(store.coding, await store.coding.get(OWNER, run.run_id), tmp_path / "data")


async def killed(store: Store, run: CodingRun, ended_at: float | None = None) -> None:
    """What the store has of a run whose process was killed, as the next command finds it."""
    await store.coding.finish(run.run_id, "interrupted", {})
    if ended_at is not None:
        from sqlalchemy import update

        from task.store import tables

        await store.database.execute(update(tables.coding_runs).values(ended_at=ended_at))


def tree(folder: Path) -> str:
    return Snapshots(folder, folder.parent / "other").take().id


CHANGES: dict[str, Change] = {
    "nothing": lambda _: None,
    "a file edited": lambda folder: (folder / "main.py").write_text("print(2)\n"),
    "a file made": lambda folder: (folder / "new.py").write_text("new = 1\n"),
    "a file removed": lambda folder: (folder / "pkg" / "one.py").unlink(),
    "a folder made": lambda folder: [(folder / "a/b").mkdir(parents=True), (folder / "a/b/c").write_text("")],
    "an empty folder removed": lambda folder: (folder / "empty").rmdir(),
    "a mode changed": lambda folder: (folder / "run.sh").chmod(0o600),
    "a folder closed": lambda folder: (folder / "pkg").chmod(0),
    "a link changed": lambda folder: [(folder / "link").unlink(), (folder / "link").symlink_to("pkg")],
    "a link in place of a file": lambda folder: [(folder / "main.py").unlink(), (folder / "main.py").symlink_to("/")],
    "a folder in place of a file": lambda folder: [
        (folder / "main.py").unlink(), (folder / "main.py").mkdir(), (folder / "main.py" / "x").write_text("x"),
    ],
    "a file in place of a folder": lambda folder: [
        (folder / "pkg" / "one.py").unlink(), (folder / "pkg").rmdir(), (folder / "pkg").write_text("x"),
    ],
    "a name that is no text": lambda folder: (folder / os.fsdecode(b"caf\xe9.txt")).unlink(),
    "a pipe made": lambda folder: os.mkfifo(folder / "pipe"),
    "caches made": lambda folder: [(folder / "__pycache__").mkdir(), (folder / "__pycache__/x.pyc").write_text("x")],
    "a commit": lambda folder: (folder / ".git" / "HEAD").write_text("ref: refs/heads/other\n"),
    "a closed folder made": lambda folder: [
        (folder / "shut").mkdir(), (folder / "shut/x").write_text("x"), (folder / "shut").chmod(0o500),
    ],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
async def test_undo_makes_the_tree_what_it_was(store: Store, workspace: Path, tmp_path: Path, change: Change) -> None:
    before = tree(workspace)
    checkpoints = await started(store, workspace, tmp_path)
    change(workspace)
    await checkpoints.step("1")
    await store.coding.finish(checkpoints.run.run_id, "finished", {})
    again = await opened(store, checkpoints.run, tmp_path)

    await again.undo(await again.planned_undo())

    assert tree(workspace) == before
    assert (await store.coding.get(OWNER, checkpoints.run.run_id)).undone_at is not None


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
async def test_a_killed_run_is_undone_although_its_last_step_was_not_kept(
    store: Store, workspace: Path, tmp_path: Path, change: Change
) -> None:
    before = tree(workspace)
    checkpoints = await started(store, workspace, tmp_path)
    change(workspace)
    await killed(store, checkpoints.run)
    again = await opened(store, checkpoints.run, tmp_path)

    await again.undo(await again.planned_undo())

    assert tree(workspace) == before
