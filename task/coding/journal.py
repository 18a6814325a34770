"""What is kept of a coding run: its options, plan, conversation and result in the store, its folder in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from task.coding.checkpoints import Checkpoints
from task.coding.coder import Progress
from task.coding.diffs import whole
from task.coding.planner import Plan
from task.conversation.messages import message_from
from task.llm.base import Usage
from task.loop import Spent
from task.runs.events import EndStatus, TaskResult
from task.store.coding import SNAPSHOTS, CodingRun
from task.store.store import Store
from task.tools.offload import LocalTexts
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


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The coding door's own data of a run. `result` is None while it works, and after its process was killed."""

    verify: str | None = None
    planner: str = ""
    coder: str = ""
    plan: Plan | None = None
    progress: Progress | None = None
    result: TaskResult | None = None
    reason: str = ""
    tests: tuple[str, ...] = ()

    def with_options(self, *, verify: str | None, coder: str) -> RunRecord:
        """The record of a run that is continued with these options."""
        return replace(self, verify=verify or self.verify, coder=coder)

    def as_dict(self) -> dict[str, Any]:
        plan, progress = self.plan, self.progress
        return {
            "verify": self.verify,
            "planner": self.planner,
            "coder": self.coder,
            "plan": None if plan is None else asdict(plan),
            "progress": None if progress is None else _progress_data(progress),
            "result": self.result,
            "reason": self.reason,
            "tests": list(self.tests),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunRecord:
        plan, progress = data["plan"], data["progress"]
        return cls(
            data["verify"], data["planner"], data["coder"],
            None if plan is None else Plan(**plan),
            None if progress is None else _progress(progress),
            data["result"], data["reason"], tuple(data["tests"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Changes:
    """What a run has changed in its workspace; `existing` are those of the `files` that were there before."""

    files: tuple[str, ...] = ()
    existing: frozenset[str] = frozenset()
    added: int = 0
    removed: int = 0
    diff: str = ""


@dataclass(slots=True)
class Journal:
    """Records one run as it goes; `run` is as it was before this process worked on it."""

    store: Store
    run: CodingRun
    data_dir: Path
    record: RunRecord
    _checkpoints: Checkpoints | None = field(default=None, init=False)

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def results(self) -> LocalTexts:
        """Where long results are kept for the model; they go when the run's snapshots go."""
        return LocalTexts(self.data_dir / SNAPSHOTS / self.run_id / "results")

    async def begin(self) -> None:
        """Keep the workspace as it is before the run changes it.

        Raises:
            SnapshotError: it cannot be kept; says why.
        """
        self._checkpoints = await Checkpoints.open(self.store.coding, self.run, self.data_dir)
        await self._checkpoints.start()

    async def planned(self, plan: Plan) -> None:
        """Keep the plan."""
        self.record = replace(self.record, plan=plan, result=None)
        await self._save()

    async def traced(self, trace_id: str) -> None:
        """Keep the id of the trace of what the run does now."""
        await self.store.coding.save(self.run_id, self.record.as_dict(), trace_id)

    async def checkpoint(self, progress: Progress | None) -> Changes:
        """Keep a step: its conversation, and the workspace as it is now; None: before the first one.

        Raises:
            SnapshotError: the workspace cannot be kept; says why.
        """
        self.record = replace(self.record, progress=progress or self.record.progress)
        if self._checkpoints is not None:
            await self._checkpoints.step(f"step {progress.spent.steps}" if progress is not None else "setup")
        await self._save()
        return await self.changes()

    async def changes(self) -> Changes:
        """All that the run has changed up to its last checkpoint."""
        if self._checkpoints is None:
            return Changes()
        diffs = await self._checkpoints.diffs()
        existing = (item.path for item in diffs if not item.text.partition("\n")[2].startswith("new file mode"))
        return Changes(
            tuple(item.path for item in diffs), frozenset(existing), sum(item.added for item in diffs),
            sum(item.removed for item in diffs), whole(diffs),
        )  # fmt: skip

    async def end(
        self,
        result: TaskResult,
        reason: str,
        progress: Progress | None,
        tests: tuple[str, ...] = (),
        *,
        kept: bool = True,
    ) -> None:
        """Keep how the run ended; it may be continued. Where the workspace was not kept at the end, undo looks at it as
        at that of a run whose process was killed."""
        self.record = replace(
            self.record, result=result, reason=reason, progress=progress or self.record.progress, tests=tests
        )
        error = None if result in ("planned", "verified") else reason
        status = STATUSES[result] if kept else "interrupted"
        await self.store.coding.finish(self.run_id, status, self.record.as_dict(), error)

    async def _save(self) -> None:
        await self.store.coding.save(self.run_id, self.record.as_dict())


def _progress_data(progress: Progress) -> dict[str, Any]:
    return {
        "messages": [message.as_stored() for message in progress.messages],
        "steps": progress.spent.steps,
        "tokens": progress.spent.tokens,
        "repeats": progress.spent.repeats.as_dict(),
        "usage": {model: list(usage.counts) for model, usage in progress.usage.items()},
    }


def _progress(data: Mapping[str, Any]) -> Progress:
    spent = Spent(data["steps"], data["tokens"], RepeatGuard.from_dict(data["repeats"]))
    usage = {model: Usage(*counts) for model, counts in data["usage"].items()}
    return Progress([message_from(message) for message in data["messages"]], spent, usage)
