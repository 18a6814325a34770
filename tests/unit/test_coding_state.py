"""A coding task is what its run's events make of it: what one process records, another continues with."""

from __future__ import annotations

from task.coding.coder import Progress
from task.coding.planner import Plan
from task.coding.state import TaskState, conversation
from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, tool_message, user
from task.llm.base import Usage
from task.loop import Spent
from task.runs.events import Checkpoint, PlanReady, RunEvent, TaskEnded, TaskStarted, Undone, data_of
from task.store.records import Event, Run, packed, unpacked


def folded(*events: RunEvent) -> TaskState:
    """The state after these events have been in the store."""
    state = TaskState(Run("code_1a2b3c4d", "local", "running", 0.0, kind="coding", folder="/projects/shop"))
    for number, event in enumerate(events, 1):
        state.apply(Event(number, event.type, unpacked(packed(data_of(event)))))
    return state


STARTED = TaskStarted("Fix it.", "/projects/shop", "planner", "coder", True, {"verify": "make check"})


def test_a_conversation_is_recorded_in_pieces_and_is_whole_again_for_another_process() -> None:
    call = ToolCall("call_1", FunctionCall("fs_read", "{}"))
    turn = [user("Do it."), assistant(None, [call]), tool_message(call, "text")]
    progress, saved, events = Progress([]), list[Message](), list[RunEvent]()
    for messages in (turn[:1], turn, [*turn[:2], tool_message(call, "text, as its turn has left it"), user("And?")]):
        progress.messages[:] = messages
        progress.spent, progress.usage = Spent(len(messages), 10), {"coder": Usage(7, len(messages))}
        events.append(Checkpoint("tree", start=False, request=conversation(progress, saved)))
        saved = list(messages)

    state = folded(STARTED, *events)

    assert state.progress is not None
    assert state.progress.messages == progress.messages
    assert (state.progress.spent.steps, state.progress.usage) == (4, {"coder": Usage(7, 4)})
    recorded = [len(event.request["messages"]) for event in events if isinstance(event, Checkpoint)]
    assert recorded == [1, 2, 2]  # only what is new


def test_a_continued_task_keeps_its_plan_and_planner_and_has_no_result_until_it_ends_again() -> None:
    plan = PlanReady(("Read.",), ("pytest",), "Do it.")
    ended = TaskEnded("code_1a2b3c4d", "limited", "stopped at the limit", 1, "", "", (), ())
    again = TaskStarted("Fix it.", "/projects/shop", None, "another coder", True, {"verify": None})
    kept = (Checkpoint("a", start=True), Checkpoint("b", start=False))

    before, after = folded(STARTED, plan, *kept, ended), folded(STARTED, plan, *kept, ended, again)

    assert (before.result, before.reason, before.verify) == ("limited", "stopped at the limit", "make check")
    assert (after.result, after.reason, after.planner, after.coder) == (None, "", "planner", "another coder")
    assert after.plan == Plan(["Read."], "Do it.", ["pytest"])
    assert after.checkpoints == [(True, "a"), (False, "b")]


def test_an_undone_task_says_so_whatever_its_result() -> None:
    assert folded(STARTED, Undone(5.0, ("app.py",), (), {})).outcome == "undone"
