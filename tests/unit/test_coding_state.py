"""A coding task folded from its run's events, and as text: in a listing, in its details, after undo."""

from task.api.identity import LOCAL_OWNER
from task.cli.run import OWNER
from task.cli.tasks import details, listing, undone
from task.coding.diffs import FileDiff
from task.coding.planner import Plan
from task.coding.state import Progress, TaskState
from task.conversation.messages import FunctionCall, ToolCall, assistant, tool_message, user
from task.llm.base import Usage
from task.loop import Spent
from task.runs.events import Checkpoint, PlanReady, RunEvent, TaskEnded, TaskResult, TaskStarted, Undone, data_of
from task.store.records import Event, Run, RunStatus, packed, unpacked
from task.tools.workspace.snapshots import Entry
from task.tools.workspace.undo import UndoPlan

NOW = 1_000_000.0
STARTED = TaskStarted("Fix it.", "/projects/shop", "planner", "coder", True, {"verify": "make check"})


def folded(*events: RunEvent) -> TaskState:
    """The state after these events have been in the store."""
    state = TaskState(Run("code_1a2b3c4d", "local", "running", 0.0, kind="coding", folder="/projects/shop"))
    for number, event in enumerate(events, 1):
        state.apply(Event(number, event.type, unpacked(packed(data_of(event)))))
    return state


def test_a_conversation_is_recorded_in_pieces_and_is_whole_again_for_another_process() -> None:
    call = ToolCall("call_1", FunctionCall("fs_read", "{}"))
    turn = [user("Do it."), assistant(None, [call]), tool_message(call, "text")]
    progress, events = Progress([]), list[RunEvent]()
    for messages in (turn[:1], turn, [*turn[:2], tool_message(call, "text, as its turn has left it"), user("And?")]):
        progress.messages[:] = messages
        progress.spent, progress.usage["coder"] = Spent(len(messages), 10), Usage(7, len(messages))
        events.append(Checkpoint("tree", start=not events, request=progress.unsaved()))

    state = folded(STARTED, *events)

    assert state.progress.messages == progress.messages
    assert (state.progress.spent.steps, state.progress.usage) == (4, {"coder": Usage(7, 4)})
    requests = [unpacked(packed(event.request)) for event in events if isinstance(event, Checkpoint)]
    assert [len(request["messages"]) for request in requests] == [1, 2, 2]  # only what is new


def test_a_continued_task_keeps_its_plan_and_planner_and_has_no_result_until_it_ends_again() -> None:
    plan = PlanReady(("Read.",), ("pytest",), "Do it.")
    ended = TaskEnded("code_1a2b3c4d", "limited", "stopped at the limit", 1, "", "", (), ())
    again = TaskStarted("Fix it.", "/projects/shop", None, "another coder", True, {"verify": None})
    kept = (Checkpoint("a", start=True), Checkpoint("b", start=False))

    before, after = folded(STARTED, plan, *kept, ended), folded(STARTED, plan, *kept, ended, again)

    assert (before.result, before.reason, before.verify) == ("limited", "stopped at the limit", "make check")
    assert (after.result, after.reason, after.planner, after.coder) == (None, "", "planner", "another coder")
    assert after.plan == Plan(["Read."], "Do it.", ["pytest"])
    assert after.legs == [("a", "b")]


def test_an_undone_task_says_so_whatever_its_result() -> None:
    assert folded(STARTED, Undone(5.0, ("app.py",), (), {})).outcome == "undone"


def task(status: RunStatus = "failed", result: TaskResult | None = "not_verified", text: str = "Fix it.") -> TaskState:
    run = Run("code_1a2b3c4d", "local", status, NOW, ended_at=NOW + 5, kind="coding", folder="/projects/shop")
    return TaskState(run, text, result=result)


def test_a_task_and_a_path_are_one_line_and_cannot_write_to_the_terminal() -> None:
    lines = listing([task(text="Fix the failing tests " * 5), task(text="\x1b[2J")]).splitlines()
    assert (len(lines), lines[1].endswith("…"), "\x1b" in lines[2]) == (3, True, False)
    plan = UndoPlan({"a\x1b[2J\nb": (Entry("file", 0o644), None)})
    assert undone(task(), plan).splitlines()[0] == "  removed   a\\x1b[2J b"


def test_results_details_and_what_was_not_restored_are_words() -> None:
    assert task().outcome == "not verified"
    assert task("interrupted", None).outcome == "interrupted"
    assert task("running", "failed").outcome == "running"
    text = undone(task(), UndoPlan({}, lost={"data.bin": "too large"}, stayed=("made",)))
    assert "data.bin is not restored: too large to be kept." in text
    assert "made stays: there is something of somebody else in it." in text
    text = details(task(), [FileDiff("app.py", "", 12, 3)])
    assert text.startswith("code_1a2b3c4d  not verified\nTask       Fix it.\nWorkspace  /projects/shop\n")
    assert "     +12 -3  app.py" in text
    assert "tasks undo code_1a2b3c4d" in text


def test_tasks_belong_to_whoever_the_web_page_takes_for_this_machines_user() -> None:
    assert OWNER == LOCAL_OWNER
