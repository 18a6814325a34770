"""Coding tasks as text: a listing for a narrow terminal, names that a terminal would obey, what was not restored."""

from __future__ import annotations

from task.api.identity import LOCAL_OWNER
from task.cli.run import OWNER
from task.cli.tasks import details, listing, undone
from task.coding.diffs import FileDiff
from task.coding.state import TaskState
from task.coding.tree import Entry
from task.coding.undo import UndoPlan
from task.runs.events import TaskResult
from task.store.records import Run, RunStatus

NOW = 1_000_000.0


def task(status: RunStatus = "failed", result: TaskResult | None = "not_verified", text: str = "Fix it.") -> TaskState:
    run = Run("code_1a2b3c4d", "local", status, NOW, ended_at=NOW + 5, kind="coding", folder="/projects/shop")
    return TaskState(run, text, result=result)


def test_a_listing_fits_a_terminal_of_60_columns() -> None:
    lines = listing([task(text="Fix the failing tests of the shop " * 5), task(text="ok")], NOW, 60).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 60
    assert lines[1].endswith("…")


def test_a_listing_for_a_file_is_not_cut() -> None:
    assert "shop " * 30 in listing([task(text="shop " * 30 + "end")], NOW, None)


def test_a_task_and_a_path_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in listing([task(text="\x1b[2J")], NOW, 60)
    plan = UndoPlan({"a\x1b[2J\nb": (Entry("file", 0o644), None)})
    assert undone(task(), plan, []).splitlines()[0] == "  removed   a\\x1b[2J b"


def test_results_are_words() -> None:
    assert task().outcome == "not verified"
    assert task("interrupted", None).outcome == "interrupted"
    assert task("running", "failed").outcome == "running"


def test_what_was_not_restored_is_named_with_its_reason() -> None:
    text = undone(task(), UndoPlan({}, lost={"data.bin": "too large"}), ["made"])
    assert "data.bin is not restored: too large to be kept." in text
    assert "made stays: there is something of somebody else in it." in text


def test_details_have_the_changes_and_what_to_do_next() -> None:
    text = details(task(), [FileDiff("app.py", "", 12, 3)], None)
    assert text.startswith("code_1a2b3c4d  not verified\nTask       Fix it.\nWorkspace  /projects/shop\n")
    assert "     +12 -3  app.py" in text
    assert "tasks undo code_1a2b3c4d" in text


def test_details_are_wrapped_for_a_narrow_terminal() -> None:
    lines = details(task(text="Fix the failing tests of the shop " * 5), [], 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[2].startswith(" " * 11)


def test_tasks_belong_to_whoever_the_web_page_takes_for_this_machines_user() -> None:
    assert OWNER == LOCAL_OWNER
