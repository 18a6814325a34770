"""Changes of a run in folders that its diff leaves out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from task.coding.diffs import LOADED, unseen_changes
from task.coding.snapshots import IGNORED
from task.utils.folders import delete


@pytest.fixture
def since(tmp_path: Path) -> int:
    """The time, by the file system's clock, before which these folders were made."""
    for name in (".venv/lib", "web/node_modules/a", "src/__pycache__"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "old").touch()
    (tmp_path / "now").touch()
    return (tmp_path / "now").stat().st_ctime_ns


def later(file: Path, since: int) -> None:
    """Change the file until the file system's clock shows it."""
    while not file.exists() or file.stat().st_ctime_ns <= since:
        file.write_text("x")


def test_nothing_is_said_of_other_files_commits_and_links_to_such_folders(tmp_path: Path, since: int) -> None:
    work = tmp_path / "work"
    for name in ("app.py", ".git/objects/ab/cd", ".git/index", ".git/refs/heads/main", ".git/logs/HEAD"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        later(work / name, since)
    (work / "link").symlink_to(tmp_path / ".venv")
    later(tmp_path / ".venv" / "lib" / "new", since)
    assert unseen_changes(work, since) == []


@pytest.mark.fault("workspace: code that a run hides in folders that no diff shows")
@pytest.mark.parametrize("name", [".venv/lib/sitecustomize.py", "web/node_modules/a/old", "src/__pycache__/app.pyc"])
def test_a_change_is_named_by_its_folder(tmp_path: Path, since: int, name: str) -> None:
    later(tmp_path / name, since)
    folder = next(part for part in LOADED if f"{part}/" in name)
    [sentence] = unseen_changes(tmp_path, since)
    assert folder in IGNORED  # of snapshots
    assert f": {name.partition(folder)[0]}{folder}. " in sentence


@pytest.mark.fault("workspace: code that a run hides in folders that no diff shows")
def test_a_time_that_was_set_back_hides_nothing(tmp_path: Path, since: int) -> None:
    file = tmp_path / ".venv" / "lib" / "old"
    later(file, since)
    os.utime(file, ns=(0, 0))
    assert ".venv" in unseen_changes(tmp_path, since)[0]


@pytest.mark.fault(
    "workspace: a repository that a command makes, or settings of git that it changes, for the person's git to run"
)
@pytest.mark.parametrize("name", [".git/config", "sub/.git/hooks/post-checkout", ".git/config.worktree", "sub/.git"])
def test_settings_of_git_that_run_programs_are_named(tmp_path: Path, since: int, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    later(tmp_path / name, since)
    [sentence] = unseen_changes(tmp_path, since)
    assert f": {name.partition('.git')[0]}.git. Git runs programs" in sentence


@pytest.mark.fault("workspace: a command that leaves folders thousands of levels deep, or closed ones with links")
def test_a_tree_of_any_depth_is_looked_through(tmp_path: Path, since: int) -> None:
    later(tmp_path / ".venv" / "lib" / "old", since)
    try:
        for depth in range(1, 1200):
            os.mkdir(f"{tmp_path}/{'d/' * depth}")
        found = unseen_changes(tmp_path, since)
    finally:
        delete(tmp_path / "d")  # pytest cannot, and would fail in every later session that tries to
    assert ".venv" in found[0]
