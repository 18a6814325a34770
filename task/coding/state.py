"""The state of a coding task, folded from the events of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task.coding.executor import Progress
from task.coding.planner import Plan
from task.conversation.messages import Message, message_from
from task.errors import Conflict, NotFound
from task.llm.base import Usage
from task.loop import Spent
from task.runs.events import KEPT, EndStatus, RunEvent, TaskResult, data_of
from task.store.records import Event, Page, Run
from task.store.store import Store
from task.tools.toolbox import RepeatGuard

STATUSES: Mapping[TaskResult, EndStatus] = {
    "planned": "finished",
    "verified": "finished",
    "failed": "failed",
    "not_verified": "failed",
    "limited": "limited",
    "denied": "cancelled",
    "interrupted": "cancelled",
}


@dataclass(slots=True)
class TaskState:
    """A task up to its latest event.

    `checkpoints` are the snapshots of its folder, each with whether the task was started or continued there.
    `result` is None while it works, and after its process was killed.
    """

    run: Run
    task: str = ""
    planner: str = ""
    coder: str = ""
    verify: str | None = None
    plan: Plan | None = None
    progress: Progress | None = None
    checkpoints: list[tuple[bool, str]] = field(default_factory=list[tuple[bool, str]])
    result: TaskResult | None = None
    reason: str = ""
    undone_at: float | None = None

    @property
    def workspace(self) -> Path:
        return Path(self.run.folder or "")

    @property
    def outcome(self) -> str:
        """How the task ended, in a word or two; `running` while it works."""
        if self.undone_at is not None:
            return "undone"
        result = None if self.run.status == "running" else self.result
        return (result or self.run.status).replace("_", " ")

    def apply(self, event: Event) -> None:
        """Add the next event of the run."""
        data = event.data
        match event.type:
            case "task_started":
                self.task, self.coder, self.verify = data["task"], data["coder"], data[KEPT]["verify"]
                self.planner = data["planner"] or self.planner
                self.result, self.reason = None, ""
            case "plan":
                self.plan = Plan(data["plan"], data["coder_prompt"], data["tests"])
            case "checkpoint":
                self.checkpoints.append((data["start"], data["tree"]))
                if said := data[KEPT]:
                    kept = self.progress.messages[: said["kept"]] if self.progress is not None else []
                    spent = Spent(said["steps"], said["tokens"], RepeatGuard.from_dict(said["repeats"]))
                    usage = {model: Usage(*counts) for model, counts in said["usage"].items()}
                    self.progress = Progress([*kept, *map(message_from, said["messages"])], spent, usage)
            case "task_ended":
                self.result, self.reason = data["result"], data["reason"]
            case "undone":
                self.undone_at = data["at"]
            case _:
                pass


def conversation(progress: Progress, saved: Sequence[Message]) -> dict[str, Any]:
    """The `request` of a checkpoint: what the coder has used, and how its messages differ from those `saved` before."""
    same = 0
    for one, other in zip(progress.messages, saved, strict=False):
        if one is not other:  # the messages of a turn that has ended replace those that it reported
            break
        same += 1
    return {
        "kept": same,
        "messages": [message.as_stored() for message in progress.messages[same:]],
        "steps": progress.spent.steps,
        "tokens": progress.spent.tokens,
        "repeats": progress.spent.repeats.as_dict(),
        "usage": {model: list(usage.counts) for model, usage in progress.usage.items()},
    }


async def task_of(store: Store, owner: str, run_id: str) -> TaskState:
    """The owner's task of that id.

    Raises:
        NotFound: there is none.
    """
    run = await store.runs.get(owner, run_id)
    if run.kind != "coding":
        raise NotFound(f"the run {run_id!r} is not a coding task")
    state = await _folded(store, run)
    if run.over and not state.task:
        raise NotFound(f"nothing is kept of the task {run_id!r}: its process was stopped before it had begun")
    return state


async def tasks(
    store: Store, owner: str, folder: Path | None = None, limit: int = 50, cursor: str | None = None
) -> Page[TaskState]:
    """The owner's tasks, the newest first; those in one folder where it is given."""
    where = None if folder is None else str(folder)
    page = await store.runs.list(owner, None, limit, cursor, kind="coding", folder=where)
    return Page(tuple([await _folded(store, run) for run in page.items]), page.cursor)


async def resumed(store: Store, state: TaskState) -> Run:
    """The task's run, continued by this process.

    Raises:
        Conflict: it is in progress, or it was undone.
    """
    if state.undone_at is not None:
        raise Conflict(f"the run {state.run.run_id} was undone; start a new one")
    return await store.runs.resume(state.run)


def record(store: Store, run: Run, event: RunEvent) -> None:
    """Add an event to a task's run in progress."""
    store.runs.append_event(run.run_id, event.type, **data_of(event))


async def _folded(store: Store, run: Run) -> TaskState:
    state = TaskState(run)
    for event in await store.runs.recorded(run.run_id):
        state.apply(event)
    return state
