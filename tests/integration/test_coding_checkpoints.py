"""A run's checkpoints: what it changed in its folder, taken back without touching what somebody else has changed."""

import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sqlalchemy import update

from task.coding.checkpoints import Checkpoints, with_tail
from task.coding.diffs import file_diffs
from task.coding.state import TaskState, record, task_of
from task.errors import Conflict, NotFound
from task.runs.events import Checkpoint, TaskStarted
from task.store import tables
from task.store.access import StoreOptions
from task.store.records import Run, RunStatus
from task.store.store import Store, open_store
from task.tools.workspace.root import held_alone
from task.tools.workspace.snapshots import SnapshotError, Snapshots, changed
from task.tools.workspace.undo import planned_undo, undo
from task.utils.folders import delete

OWNER = "local"
LONG_AGO = 1_000.0

Change = Callable[[Path], object]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await open_store(StoreOptions(f"sqlite:///{tmp_path}/data/store.db", chores=False))
    yield store
    await store.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
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
    yield folder
    delete(folder)  # pytest could not, if a test left a deep tree, and would fail in every later session that tries to


@pytest.fixture
def snapshots(workspace: Path, tmp_path: Path) -> Snapshots:
    return Snapshots(workspace, tmp_path / "kept")


async def started(store: Store, workspace: Path, tmp_path: Path) -> Checkpoints:
    run = await store.runs.start(OWNER, folder=str(workspace))
    record(store, run, TaskStarted("do it", str(workspace), "planner", "coder", True, {"verify": None}))
    checkpoints = await Checkpoints.open(store, TaskState(run), tmp_path / "data")
    record(store, run, Checkpoint((await checkpoints.start()).id, start=True))
    return checkpoints


async def step(checkpoints: Checkpoints) -> None:
    record(checkpoints.store, checkpoints.run, Checkpoint((await checkpoints.step()).id, start=False))


async def ended(checkpoints: Checkpoints, status: RunStatus = "finished") -> None:
    await checkpoints.store.runs.finish(checkpoints.run, status)


async def opened(store: Store, run: Run, tmp_path: Path) -> Checkpoints:
    return await Checkpoints.open(store, await task_of(store, OWNER, run.run_id), tmp_path / "data")


async def continued(store: Store, run: Run, tmp_path: Path) -> Checkpoints:
    """The checkpoints of a run whose process was killed, begun once more by another."""
    again = await opened(store, run, tmp_path)
    await again.resume(await task_of(store, OWNER, run.run_id))
    record(store, run, Checkpoint((await again.start()).id, start=True))
    return again


async def killed(checkpoints: Checkpoints, ended_at: float | None = None) -> None:
    """What the store has of a run whose process was killed, as the next command finds it."""
    await ended(checkpoints, "interrupted")
    if ended_at is not None:
        await checkpoints.store.database.execute(update(tables.runs).values(ended_at=ended_at))


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
    "files where git keeps objects, in a repository that was none": lambda folder: [
        *(os.makedirs(folder / place / name) for place in (".git", "sub") for name in ("refs", "objects")),
        (folder / "sub/HEAD").write_text("ref: refs/heads/main"), (folder / "sub/objects/evil").write_text("x"),
        (folder / ".git/objects/evil").write_text("x"),
    ],
    "a commit": lambda folder: (folder / ".git" / "HEAD").write_text("ref: refs/heads/other\n"),
    "a file with the name of undo's own": lambda folder: (folder / ".dial-agent-undo").write_text("x"),
    "a folder with the name of undo's own": lambda folder: [
        (folder / ".dial-agent-undo").mkdir(), (folder / ".dial-agent-undo/x").write_text("x"),
        (folder / "main.py").unlink(),
    ],
    "a closed folder made": lambda folder: [
        (folder / "shut").mkdir(), (folder / "shut/x").write_text("x"), (folder / "shut").chmod(0o500),
    ],
}  # fmt: skip


@pytest.mark.fault("coding: names that are no text, pipes, links and closed folders in an undone workspace")
@pytest.mark.fault("coding: a file or a folder with the name of undo's own")
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_undo_makes_the_tree_what_it_was(workspace: Path, snapshots: Snapshots, change: Change) -> None:
    before = snapshots.take()
    change(workspace)
    after = snapshots.take(before)
    now = snapshots.take(after, keeps=False)

    # Of a run that was killed: what was changed while it was alive is its work.
    assert with_tail(before, now, time.time_ns()).entries == now.entries
    assert with_tail(before, now, before.taken_ns - 10**9).entries.keys() == before.entries.keys()
    undo(planned_undo([(before, after)], now), snapshots)
    assert tree(workspace) == before.id


def git_index(digest: bytes, seconds: int = 1) -> bytes:
    name = b"main.py"
    entry = struct.pack(">10L", seconds, 0, seconds, 0, 0, 0, 0o100644, 0, 0, 9) + digest * 20 + b"\0\x07" + name
    return struct.pack(">4sLL", b"DIRC", 2, 1) + entry.ljust((len(entry) // 8 + 1) * 8, b"\0") + b"x" * 20


@dataclass(frozen=True, slots=True)
class Meddling:
    """What a run writes into its folder, and others after it; where it was killed long before, perhaps also what it
    writes when it is continued. Then the paths that undo names, the folders that stay, and files after `--force`."""

    run: Mapping[str, bytes]
    theirs: Mapping[str, bytes]
    killed: bool = False
    continued: Mapping[str, bytes] | None = None
    named: tuple[str, ...] = ()
    stay: tuple[str, ...] = ()
    left: Mapping[str, bytes] = field(default_factory=lambda: {"main.py": b"print(1)\n"})


TWO, THREE, THEIRS, INDEX = {"main.py": b"print(2)\n"}, {"main.py": b"print(3)\n"}, b"theirs", ".git/index"
MEDDLING = {
    "the same file": Meddling({**TWO, "new.py": b""}, THREE, named=("main.py",)),
    "files beside it": Meddling(
        {"made/ours.py": b""},
        {"made/theirs.py": THEIRS, "pkg/one.py": THEIRS},
        stay=("made",),
        left={"made/theirs.py": THEIRS, "pkg/one.py": THEIRS},
    ),
    "after a kill": Meddling(
        TWO, {"pkg/one.py": THEIRS}, killed=True, left={"main.py": b"print(1)\n", "pkg/one.py": THEIRS}
    ),
    "another file between two parts": Meddling(
        TWO,
        {"theirs.py": THEIRS},
        killed=True,
        continued=THREE,
        left={"main.py": b"print(1)\n", "theirs.py": THEIRS},
    ),
    "the same file between two parts": Meddling(
        TWO, {"main.py": THEIRS}, killed=True, continued=THREE, named=("main.py",)
    ),
    "git status": Meddling(
        {INDEX: git_index(b"b")}, {INDEX: git_index(b"b", seconds=7)}, left={INDEX: git_index(b"a")}
    ),
    "git add": Meddling({INDEX: git_index(b"b")}, {INDEX: git_index(b"c")}, named=(INDEX,)),
}


@pytest.mark.fault(
    "coding: a file that somebody changed since the run, between two parts of it, or after it was killed"
)
@pytest.mark.fault("coding: `git status` or `git add` between a run and its undoing")
@pytest.mark.parametrize("case", MEDDLING.values(), ids=list(MEDDLING))
async def test_what_others_have_changed_stays_or_is_named_and_only_forced(
    store: Store, workspace: Path, tmp_path: Path, case: Meddling
) -> None:
    def write(files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            (workspace / path).parent.mkdir(exist_ok=True)
            (workspace / path).write_bytes(content)

    write({INDEX: git_index(b"a")})
    checkpoints = await started(store, workspace, tmp_path)
    write(case.run)
    await step(checkpoints)
    await (killed(checkpoints, ended_at=LONG_AGO) if case.killed else ended(checkpoints))
    write(case.theirs)
    if case.continued is not None:
        again = await continued(store, checkpoints.run, tmp_path)
        write(case.continued)
        await step(again)
        assert "+print(3)\n" in (await again.diffs())[0].text
        await ended(again)
    last, left = await opened(store, checkpoints.run, tmp_path), tree(workspace)

    for path in case.named:
        with pytest.raises(Conflict, match=f"others have changed {re.escape(path)} since the run"):
            await last.undo()
        assert tree(workspace) == left
    assert (await last.undo(force=bool(case.named))).stayed == case.stay
    assert {path: (workspace / path).read_bytes() for path in case.left} == case.left


@pytest.mark.fault("coding: an unknown run, one in progress, or one that was undone")
async def test_a_run_in_progress_is_not_undone_and_an_undone_one_is_not_continued(
    store: Store, workspace: Path, tmp_path: Path
) -> None:
    checkpoints = await started(store, workspace, tmp_path)
    with pytest.raises(Conflict, match="is in progress"):
        await checkpoints.undo()
    with pytest.raises(Conflict, match="is in progress"):
        await checkpoints.resume(await task_of(store, OWNER, checkpoints.run.run_id))
    await ended(checkpoints, "failed")
    again = await opened(store, checkpoints.run, tmp_path)
    await again.undo()
    with pytest.raises(Conflict, match="was undone"):
        await checkpoints.resume(await task_of(store, OWNER, checkpoints.run.run_id))


async def test_snapshots_that_the_retention_does_not_keep_are_removed(
    store: Store, workspace: Path, tmp_path: Path
) -> None:
    first = await started(store, workspace, tmp_path)
    await ended(first)
    folder = tmp_path / "data" / "snapshots"
    other = folder / "code_of_another_store"
    other.mkdir()
    (other / "store").write_text("PostgreSQL at db/agent")
    second = await started(store, workspace, tmp_path)
    await replace(store, options=replace(store.options, traces=1)).forget()

    await store.sweep(folder)  # as each run does at its start, and a server every hour

    with pytest.raises(NotFound):
        await store.runs.get(OWNER, first.run.run_id)
    assert not (folder / first.run.run_id).exists()
    assert (folder / second.run.run_id).exists()
    assert other.exists()


async def test_runs_of_one_folder_share_what_has_not_changed_outlive_each_other_and_are_for_this_account_only(
    store: Store, workspace: Path, tmp_path: Path
) -> None:
    first = await started(store, workspace, tmp_path)
    await ended(first)
    second = await started(store, workspace, tmp_path)
    entry = second.snapshots.take().entries["main.py"]
    assert second.snapshots.place(entry.content).stat().st_nlink == 2
    kept = [tmp_path / "data" / "snapshots", *(tmp_path / "data" / "snapshots").rglob("*")]
    assert [path for path in kept if path.stat().st_mode & 0o077 and path.name != "store"] == []

    first.snapshots.place(entry.content).unlink()

    assert second.snapshots.content(entry) == b"print(1)\n"


async def test_the_data_folder_inside_of_a_workspace_is_no_part_of_it(store: Store, tmp_path: Path) -> None:
    checkpoints = await started(store, tmp_path, tmp_path)
    assert not any(path.startswith("data") for path in checkpoints.snapshots.take().entries)


@pytest.mark.fault("coding: a 1 GB file, or more than a snapshot may hold")
def test_a_folder_with_too_much_is_refused_and_a_large_file_only_noticed(workspace: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with pytest.raises(SnapshotError, match="more than 2 files and folders"):
        Snapshots(workspace, kept, most=2).take()
    with pytest.raises(SnapshotError, match="more than undo can keep"):
        Snapshots(workspace, kept, total=10).take()
    snapshots = Snapshots(workspace, kept, largest=10)
    with (workspace / "data.bin").open("wb") as file:
        file.truncate(1 << 30)  # a hole: it takes no room
    before = snapshots.take()
    (workspace / "data.bin").write_bytes(b"a different content")
    after = snapshots.take(before)

    assert before.entries["data.bin"].kind == "opaque"
    assert list(changed(before, after)) == ["data.bin"]
    [diff] = file_diffs(changed(before, after), snapshots.content)
    assert "Binary files a/data.bin and b/data.bin differ" in diff.text


@pytest.mark.fault("coding: what undo cannot make again")
def test_what_cannot_be_made_again_is_named(workspace: Path, snapshots: Snapshots) -> None:
    (workspace / "node_modules").mkdir()
    before = snapshots.take()
    (workspace / "node_modules").rmdir()
    after = snapshots.take(before)
    plan = planned_undo([(before, after)], after)
    assert (plan.lost, plan.steps) == ({"node_modules": "ignored"}, {})


@pytest.mark.fault("coding: a 1 GB file, or more than a snapshot may hold")
async def test_a_run_that_made_more_than_can_be_kept_is_undone(store: Store, workspace: Path, tmp_path: Path) -> None:
    before = tree(workspace)
    checkpoints = await started(store, workspace, tmp_path)
    (workspace / "big").write_bytes(b"x" * 4096)
    (workspace / "main.py").unlink()
    for depth in range(1, 1200):
        os.mkdir(f"{workspace}/{'d/' * depth}")
    small = Snapshots(workspace, tmp_path / "data" / "snapshots" / checkpoints.run.run_id, total=1000)
    with pytest.raises(SnapshotError):
        await replace(checkpoints, snapshots=small).step()
    await killed(checkpoints)
    again = replace(await opened(store, checkpoints.run, tmp_path), snapshots=small)

    await again.undo()

    assert tree(workspace) == before
    assert (await task_of(store, OWNER, checkpoints.run.run_id)).undone_at is not None


@pytest.mark.fault("coding: a link in place of a folder while undo works")
def test_a_link_in_place_of_a_folder_leads_nowhere(workspace: Path, snapshots: Snapshots, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "one.py").write_text("canary")
    before = snapshots.take()
    (workspace / "pkg" / "one.py").write_text("one = 2\n")
    after = snapshots.take(before)
    (workspace / "pkg" / "one.py").unlink()
    (workspace / "pkg").rmdir()
    (workspace / "pkg").symlink_to(outside)
    now = snapshots.take(after)

    assert "pkg/one.py" not in now.entries
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        undo(planned_undo([(before, after)], now), snapshots, force=True)
    assert (outside / "one.py").read_text() == "canary"


@pytest.mark.fault("coding: a second run in one folder, or in a folder of it")
@pytest.mark.parametrize("below", ["", "pkg"], ids=["the same folder", "a folder in it"])
def test_a_second_run_in_one_folder_is_refused_until_the_first_is_over_or_killed(workspace: Path, below: str) -> None:
    holding = "import sys\nfrom pathlib import Path\nfrom task.tools.workspace.root import held_alone\n"
    holding += "with held_alone(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    command = [sys.executable, "-c", holding, str(workspace)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Conflict, match="Another coding run works in"), held_alone(workspace / below):
            pass
        other.kill()
        other.wait(30)
    with held_alone(workspace / below):
        pass
    with held_alone(workspace / "pkg"), held_alone(workspace / "empty"):  # beside each other
        pass


MANY = 400


def program(work: str, *arguments: Path) -> list[str]:
    lines = ["import sys", "from pathlib import Path", "from task.tools.workspace.snapshots import Snapshots", work]
    return [sys.executable, "-c", "\n".join(lines), *map(str, arguments)]


def killed_when(command: list[str], holds: Callable[[], bool]) -> None:
    """Run a command and kill it as soon as this holds."""
    until = time.monotonic() + 60
    with subprocess.Popen(command) as process:
        while process.poll() is None and not holds() and time.monotonic() < until:
            pass
        process.kill()


@pytest.mark.fault("coding: a kill during a snapshot or an undo")
def test_a_snapshot_and_an_undo_that_were_killed_are_completed_by_the_next_ones(
    workspace: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    for number in range(MANY):
        (workspace / f"{number}.txt").write_text(f"{number}\n" * 1000)
    taking = program("Snapshots(Path(sys.argv[1]), Path(sys.argv[2])).take()", workspace, kept)
    killed_when(taking, lambda: (kept / "contents").exists())
    snapshots = Snapshots(workspace, kept)
    before = snapshots.take()
    files = {path: entry for path, entry in before.entries.items() if entry.kind == "file"}
    assert [path for path in files if snapshots.content(files[path]) != (workspace / path).read_bytes()] == []

    for number in range(MANY):
        (workspace / f"{number}.txt").write_text("changed\n")
        (workspace / f"{number}.new").write_text("new\n")
    after = snapshots.take(before)
    undoing = "from task.tools.workspace.undo import planned_undo, undo\n"
    undoing += "s = Snapshots(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    undoing += "b, a = s.load(sys.argv[3]), s.load(sys.argv[4])\nnow = s.take(a, keeps=False)\n"
    undoing += "undo(planned_undo([(b, a)], now), s)"
    command = program(undoing, workspace, kept, Path(before.id), Path(after.id))
    killed_when(command, lambda: not (workspace / "1.new").exists())
    (workspace / ".dial-agent-undo").write_text("half")  # what it was writing when it was killed, if nothing else
    undo(planned_undo([(before, after)], snapshots.take(after, keeps=False)), snapshots)
    assert tree(workspace) == before.id


@pytest.mark.fault("coding: a disk that is full while a snapshot is written")
def test_a_full_disk_ends_a_snapshot_with_a_sentence_and_leaves_no_half_content(
    workspace: Path, tmp_path: Path
) -> None:
    (workspace / "large.txt").write_text("x" * 100_000)
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
    full += "Snapshots(Path(sys.argv[1]), Path(sys.argv[2])).take()"
    kept = tmp_path / "kept"
    ended = subprocess.run(program(full, workspace, kept), capture_output=True, text=True, timeout=60, check=False)
    assert "project cannot be kept: File too large." in ended.stderr
    assert [path for path in kept.rglob("*") if path.is_file() and path.stat().st_size == 10_000] == []


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.system
@pytest.mark.parametrize(
    "commands",
    [
        ("checkout -b other", "add -A", "commit -m second", "gc --prune=now"),
        ("add -A", "stash"),
        ("rm main.py",),
        ("init --quiet new",),
    ],
    ids=" && ".join,
)
def test_a_repository_is_as_before_whatever_the_run_did_with_git(tmp_path: Path, commands: tuple[str, ...]) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text("one\n")
    for command in ("init --quiet -b main", "add -A", "commit -m first"):
        git(folder, *command.split())
    (folder / "staged.py").write_text("staged\n")
    git(folder, "add", "staged.py")
    snapshots = Snapshots(folder, tmp_path / "kept")
    before, status = snapshots.take(), git(folder, "status", "--porcelain")
    before = snapshots.take(before)  # the status has written into the index
    (folder / "new.py").write_text("new\n")
    for command in commands:
        git(folder, *command.split())
    after = snapshots.take(before)
    git(folder, "status")

    plan = planned_undo([(before, after)], snapshots.take(after, keeps=False))
    undo(plan, snapshots)

    assert plan.others == ()
    assert snapshots.take().id == before.id
    assert git(folder, "status", "--porcelain") == status
    assert git(folder, "log", "--format=%s") == "first\n"
    assert git(folder, "fsck", "--full", "--no-dangling") == ""
