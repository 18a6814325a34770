"""Differences of two trees in Git's format, as small as the change, and changes that no diff shows."""

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from task.coding.diffs import LOADED, FileDiff, file_diffs, unseen_changes
from task.tools.workspace.snapshots import IGNORED, Snapshots, changed
from task.utils.folders import delete


class Tree:
    """A folder of which two states are compared."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "tree"
        self.folder.mkdir()
        self._snapshots = Snapshots(self.folder, place / "kept")
        self._before = self._snapshots.take()

    def write(self, name: str, content: bytes | str, mode: int = 0o644) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)

    def keep(self) -> None:
        self._before = self._snapshots.take()

    def diffs(self) -> list[FileDiff]:
        return file_diffs(changed(self._before, self._snapshots.take()), self._snapshots.content)

    def diff(self) -> str:
        return "".join(item.text for item in self.diffs())


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_change_has_three_lines_around_it_and_its_place_in_the_file(tree: Tree) -> None:
    lines = [f"line {number}\n" for number in range(1, 101)]
    tree.write("a.txt", "".join(lines))
    tree.keep()
    lines[49] = "changed\n"
    tree.write("a.txt", "".join(lines))
    assert tree.diff() == (
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -47,7 +47,7 @@\n"
        " line 47\n line 48\n line 49\n-line 50\n+changed\n line 51\n line 52\n line 53\n"
    )


def test_new_and_removed_files_modes_links_and_a_missing_last_newline(tree: Tree) -> None:
    tree.write("gone.txt", "one\r\ntwo")
    tree.write("run.sh", "#!\n")
    (tree.folder / "link").symlink_to("run.sh")
    (tree.folder / "x").symlink_to("y")
    tree.keep()
    (tree.folder / "gone.txt").unlink()
    (tree.folder / "run.sh").chmod(0o755)
    (tree.folder / "link").unlink()
    (tree.folder / "link").symlink_to("new")
    tree.write("new", "")
    (tree.folder / "x").unlink()
    tree.write("x", "text\n")
    assert tree.diff() == (
        "diff --git a/gone.txt b/gone.txt\ndeleted file mode 100644\n--- a/gone.txt\n+++ /dev/null\n"
        "@@ -1,2 +0,0 @@\n-one\r\n-two\n\\ No newline at end of file\n"
        "diff --git a/link b/link\n--- a/link\n+++ b/link\n@@ -1 +1 @@\n"
        "-run.sh\n\\ No newline at end of file\n+new\n\\ No newline at end of file\n"
        "diff --git a/new b/new\nnew file mode 100644\n"
        "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n"
        "diff --git a/x b/x\ndeleted file mode 120000\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-y\n"
        "\\ No newline at end of file\n"
        "diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+text\n"
    )


def test_what_is_no_text_or_too_much_is_only_named(tree: Tree) -> None:
    tree.write("picture.png", b"\x89PNG\x00\xff")
    tree.write("many.txt", "\n".join(str(number) for number in range(6000)))
    found = tree.diffs()
    assert [(item.path, item.added) for item in found] == [("many.txt", 0), ("picture.png", 0)]
    assert all("Binary files /dev/null and b/" in item.text for item in found)


def test_lines_are_counted_gits_own_files_left_out_and_names_written_as_git_does(tree: Tree) -> None:
    tree.write(".git/config", "[core]\n")
    tree.write("a.py", "one\ntwo\n")
    tree.keep()
    tree.write("a.py", "one\n2\n3\n")
    tree.write(".git/config", "[user]\n")
    for name in ('quo"te\n.txt', os.fsdecode(b"\xff.txt"), "größe.txt"):
        tree.write(name, "x\n")
    found = tree.diffs()
    assert [(item.path, item.added, item.removed) for item in found][:1] == [("a.py", 2, 1)]
    assert [item.text.splitlines()[0] for item in found] == [
        "diff --git a/a.py b/a.py",
        "diff --git a/größe.txt b/größe.txt",
        'diff --git "a/quo\\"te\\n.txt" "b/quo\\"te\\n.txt"',
        'diff --git "a/\\377.txt" "b/\\377.txt"',
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_difference_leads_from_one_text_to_the_other(tree: Tree, seed: int) -> None:
    chance = random.Random(seed)
    old = [f"{chance.randrange(6)}\n" for _ in range(chance.randrange(60))]
    new = [line for line in old if chance.random() < 0.9]
    for _ in range(chance.randrange(4)):
        new.insert(chance.randrange(len(new) + 1), "new\n")
    tree.write("a.txt", "".join(old))
    tree.keep()
    tree.write("a.txt", "".join(new))
    assert applied(old, tree.diff()) == new


def applied(old: list[str], diff: str) -> list[str]:
    """The lines after the hunks, whose places and lengths must be right."""
    found, place = list[str](), 0
    for hunk in re.split(r"^(?=@@ )", diff, flags=re.MULTILINE)[1:]:
        head, *lines = hunk.splitlines(keepends=True)
        match = re.match(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@", head)
        assert match is not None, head
        start, count, new_count = (int(number or 1) for number in match.groups())
        begin = start - 1 if count else start
        before = [line[1:] for line in lines if line[0] in " -"]
        after = [line[1:] for line in lines if line[0] in " +"]
        assert (old[begin : begin + count], len(before), len(after)) == (before, count, new_count)
        found += [*old[place:begin], *after]
        place = begin + count
    return found + old[place:]


@pytest.mark.system
def test_git_takes_it(tree: Tree, tmp_path: Path) -> None:
    tree.write("a.txt", "one\ntwo\nthree")
    tree.write("gone.txt", "gone\n")
    other = tmp_path / "other"
    other.mkdir()
    for name in ("a.txt", "gone.txt"):
        (other / name).write_bytes((tree.folder / name).read_bytes())
    tree.keep()
    tree.write("a.txt", "one\n2\nthree\n")
    tree.write("tab\tname", "new", 0o755)
    (tree.folder / "gone.txt").unlink()
    subprocess.run(["git", "apply"], cwd=other, input=tree.diff().encode(), check=True, timeout=60)
    for folder in (tree.folder, other):
        assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "tab\tname"]
    assert (other / "a.txt").read_text() == "one\n2\nthree\n"
    assert (other / "tab\tname").stat().st_mode & 0o111


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
