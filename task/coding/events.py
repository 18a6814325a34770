"""What a coding run reports while it works, for the terminal and as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Purpose = Literal["setup", "verification"]
Result = Literal["planned", "verified", "failed", "not_verified", "limited", "denied", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """`planner` is None where the plan was made before; `apply`: the plan is carried out."""

    run_id: str
    workspace: str
    planner: str | None
    coder: str
    apply: bool
    task: str


@dataclass(frozen=True, slots=True)
class PlanReady:
    plan: tuple[str, ...]
    tests: tuple[str, ...]
    coder_prompt: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A sentence that a person should read."""

    text: str


@dataclass(frozen=True, slots=True)
class CommandRan:
    """The setup or a verification command has ended; `output` is the end of what it wrote."""

    purpose: Purpose
    command: str
    code: int
    output: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CommandStarted:
    purpose: Purpose
    command: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    """Before request number `step` of at most `limit` to the coder."""

    step: int
    limit: int


@dataclass(frozen=True, slots=True)
class TextWritten:
    """A piece of what the coder says."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    title: str
    tool: str
    failed: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class PlanStepDone:
    """The coder reports step number `step` of the plan as done."""

    step: int


@dataclass(frozen=True, slots=True)
class WorkspaceChanged:
    """All that the run has changed so far."""

    files: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """How the run ended, and why in a sentence; `tests` were there before and were changed, `tokens` are by model."""

    run_id: str
    result: Result
    reason: str
    steps: int
    answer: str
    diff: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    tokens: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    seconds: float = 0.0
    trace_id: str | None = None


CodingEvent = (
    RunStarted | PlanReady | Noted | CommandStarted | CommandRan | StepStarted | TextWritten | CallEnded
    | PlanStepDone | WorkspaceChanged | RunEnded
)  # fmt: skip
Emit = Callable[[CodingEvent], None]

NAMES: Mapping[type[Any], str] = {
    RunStarted: "run_started",
    PlanReady: "plan",
    Noted: "note",
    CommandStarted: "command_started",
    CommandRan: "command",
    StepStarted: "step",
    TextWritten: "text",
    CallEnded: "call",
    PlanStepDone: "plan_step_done",
    WorkspaceChanged: "changed",
    RunEnded: "run_ended",
}


def as_json(event: CodingEvent) -> dict[str, Any]:
    """The event as JSON data."""
    return {"event": NAMES[type(event)], **asdict(event)}
