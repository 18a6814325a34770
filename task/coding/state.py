"""The state of a coding task, folded from the events of its run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from task.coding.planner import Plan
from task.conversation.messages import Message, Role, message_from
from task.errors import NotFound
from task.llm.base import Usage
from task.loop import Spent
from task.runs.events import KEPT, RunEvent, TaskResult, data_of
from task.store.records import Event, Page, Run
from task.store.store import Store


@dataclass(slots=True)
class Progress:
    """How far the coder has come since `began_ns`: its messages, `saved` in the store, and what it used of limits."""

    messages: list[Message]
    spent: Spent = field(default_factory=Spent)
    usage: defaultdict[str, Usage] = field(default_factory=lambda: defaultdict(Usage))
    saved: Sequence[Message] = ()
    began_ns: int = 0

    @property
    def last(self) -> str:
        """The last thing the coder said."""
        said = (message.text() for message in reversed(self.messages) if message.role is Role.ASSISTANT)
        return next(filter(None, said), "")

    def unsaved(self) -> dict[str, Any]:
        """The `request` of a checkpoint: how the messages differ from those saved, which they are then, and what was
        used."""
        # By identity: the messages of a turn that has ended replace those that it reported.
        pairs = zip(self.messages, self.saved, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        self.saved = list(self.messages)
        return {
            "kept": same,
            "messages": [message.as_stored() for message in self.messages[same:]],
            "steps": self.spent.steps,
            "tokens": self.spent.tokens,
            "usage": {model: list(usage.counts) for model, usage in self.usage.items()},
            "began_ns": self.began_ns,
        }

    def restore(self, said: Mapping[str, Any]) -> None:
        """Take over what `unsaved` gave."""
        self.messages[said["kept"] :] = map(message_from, said["messages"])
        self.spent = Spent(said["steps"], said["tokens"])
        self.usage.update({model: Usage(*counts) for model, counts in said["usage"].items()})
        self.saved, self.began_ns = list(self.messages), said.get("began_ns", 0)


@dataclass(slots=True)
class TaskState:
    """A task up to its latest event.

    Of each of its `legs` these are the snapshots of its folder when it was started or continued, and the last one.
    `result` is None while it works, and after its process was killed.
    """

    run: Run
    task: str = ""
    planner: str = ""
    coder: str = ""
    verify: str | None = None
    plan: Plan | None = None
    progress: Progress = field(default_factory=lambda: Progress([]))
    legs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
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
                self.plan = Plan(data["plan"], data["coder_prompt"], data["tests"], data.get("writes", True))
            case "checkpoint":
                self.legs.append((data["tree"] if data["start"] else self.legs.pop()[0], data["tree"]))
                if said := data[KEPT]:
                    self.progress.restore(said)
            case "task_ended":
                self.result, self.reason = data["result"], data["reason"]
            case "undone":
                self.undone_at = data["at"]
            case _:
                pass


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
    page = await store.runs.list(owner, None, limit, cursor, kind="coding", folder=folder and str(folder))
    return Page(tuple([await _folded(store, run) for run in page.items]), page.cursor)


def record(store: Store, run: Run, event: RunEvent) -> None:
    """Add an event to a task's run in progress."""
    store.runs.append_event(run.run_id, event.type, **data_of(event))


async def _folded(store: Store, run: Run) -> TaskState:
    state = TaskState(run)
    for event in await store.runs.recorded(run.run_id):
        state.apply(event)
    return state
