"""What a run reports: one vocabulary for the server-sent events, every `--json`, the web page and the terminals.

The OpenAPI document describes every `AnswerEvent`, and `docs/http-api.md` lists its fields; a coding task reports
`TaskEvent`s beside them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import Literal, Self

from task.conversation.messages import frozen_data
from task.llm.base import Usage
from task.store.records import Event

EndStatus = Literal["finished", "limited", "suspended", "cancelled", "failed", "interrupted"]
StageStatus = Literal["completed", "failed"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
Purpose = Literal["setup", "verification"]
TaskResult = Literal["planned", "verified", "unchanged", "failed", "not_verified", "limited", "denied", "interrupted"]
TASK_STATUSES: Mapping[TaskResult, EndStatus] = {  # all others have failed
    "planned": "finished",
    "verified": "finished",
    "unchanged": "finished",
    "limited": "limited",
    "denied": "cancelled",
    "interrupted": "cancelled",
}
KEPT = "request"  # how another process would continue the run: only the product reads it


@frozen_data
class RunStarted:
    """`messages` counts those that the conversation had before."""

    run_id: str
    session_id: str | None
    trace_id: str | None
    model: str
    messages: int
    request: Mapping[str, object] = field(default_factory=dict[str, object])
    type: Literal["started"] = "started"


@frozen_data
class RunText:
    """The next piece of the answer, or of the model's reasoning."""

    text: str
    type: Literal["text", "reasoning"] = "text"


@frozen_data
class StageOpened:
    """Stages have numbers; one without `parent` belongs to the answer itself."""

    stage: int
    parent: int | None
    name: str
    type: Literal["stage_opened"] = "stage_opened"


@frozen_data
class StageText:
    stage: int
    text: str
    type: Literal["stage_text"] = "stage_text"


@frozen_data
class StageClosed:
    """`name` ends with the duration, such as `[0.25s]`."""

    stage: int
    name: str
    status: StageStatus
    type: Literal["stage_closed"] = "stage_closed"


@frozen_data
class Attached:
    """A file or a source; without `stage` it belongs to the answer."""

    stage: int | None
    attachment: Mapping[str, object]
    type: Literal["attachment"] = "attachment"


@frozen_data
class RunCalls:
    """Calls of the caller's own tools."""

    tool_calls: Sequence[Mapping[str, object]]
    type: Literal["tool_calls"] = "tool_calls"


@frozen_data
class RunAsks:
    """Calls that wait for the user, one approval each; `text` is the same question as Markdown."""

    approvals: Sequence[Mapping[str, object]]
    text: str
    type: Literal["approval"] = "approval"


@frozen_data
class RunUsage:
    """`cost` is None where a price is unknown."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Mapping[str, int]
    completion_tokens_details: Mapping[str, int]
    cost: float | None
    duration_ms: float | None
    type: Literal["usage"] = "usage"

    @classmethod
    def of(cls, usage: Usage, cost: float | None, duration_ms: float | None) -> Self:
        cached, reasoning = {"cached_tokens": usage.cached_tokens}, {"reasoning_tokens": usage.reasoning_tokens}
        asked, written = usage.prompt_tokens, usage.completion_tokens
        return cls(asked, written, asked + written, cached, reasoning, cost, duration_ms)


@frozen_data
class RunError:
    """`status` is HTTP's, `retry_after` in seconds."""

    error: Mapping[str, object]
    status: int = 500
    retry_after: int | None = None
    type: Literal["error"] = "error"


@frozen_data
class RunFinished:
    """The last event. `messages` counts those that the conversation has now; None where its process died."""

    status: EndStatus
    run_id: str
    session_id: str | None
    trace_id: str | None
    finish_reason: FinishReason | None
    limit: str | None = None
    messages: int | None = None
    type: Literal["finished"] = "finished"


@frozen_data
class TaskStarted:
    """`planner` is None where the plan was made before; `apply`: the plan is carried out. It comes again each time that
    the task is continued."""

    task: str
    workspace: str
    planner: str | None
    coder: str
    apply: bool
    request: Mapping[str, object] = field(default_factory=dict[str, object])
    type: Literal["task_started"] = "task_started"


@frozen_data
class PlanReady:
    plan: Sequence[str]
    tests: Sequence[str]
    coder_prompt: str
    writes: bool = True
    type: Literal["plan"] = "plan"


@frozen_data
class Noted:
    """A sentence that the user should read."""

    text: str
    type: Literal["note"] = "note"


@frozen_data
class CommandStarted:
    purpose: Purpose
    command: str
    type: Literal["command_started"] = "command_started"


@frozen_data
class CommandEnded:
    """The setup or a verification command; `output` is the end of what it wrote."""

    purpose: Purpose
    command: str
    code: int
    output: str
    seconds: float
    type: Literal["command_ended"] = "command_ended"


@frozen_data
class StepStarted:
    """Before request number `step` of at most `limit` to the coder."""

    step: int
    limit: int
    type: Literal["step_started"] = "step_started"


@frozen_data
class PlanStepDone:
    """The coder reports step number `step` of the plan as done."""

    step: int
    type: Literal["plan_step_done"] = "plan_step_done"


@frozen_data
class Checkpoint:
    """The workspace is kept as the snapshot `tree`: at a `start`, before the task changes anything or continues to, and
    after each step; once more before a call. `request` is the coder's conversation up to there. Programs that follow a
    task need neither."""

    tree: str
    start: bool
    request: Mapping[str, object] = field(default_factory=dict[str, object])
    type: Literal["checkpoint"] = "checkpoint"


@frozen_data
class WorkspaceChanged:
    """All that the task has changed: files, and lines of those that are text. It comes once, before the end."""

    files: int
    added: int
    removed: int
    type: Literal["changed"] = "changed"


@frozen_data
class TaskEnded:
    """How the task ended, and why in a sentence; `tests` existed before and were changed, `tokens` (in, out) are by
    model. The store keeps no `diff`: it is made of the snapshots."""

    run_id: str
    result: TaskResult
    reason: str
    steps: int
    answer: str
    diff: str
    files: Sequence[str]
    tests: Sequence[str]
    tokens: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    seconds: float = 0.0
    trace_id: str | None = None
    type: Literal["task_ended"] = "task_ended"


@frozen_data
class Undone:
    """What the task has changed was taken back, `at` seconds since 1970. Paths that were `lost` could not be made
    again, for the reason given; the folders that `stayed` hold something of others."""

    at: float
    restored: Sequence[str]
    stayed: Sequence[str]
    lost: Mapping[str, str]
    type: Literal["undone"] = "undone"


@frozen_data
class AttachmentSaved:
    """A command wrote a file of the answer to `path`."""

    title: str | None
    url: str | None
    path: str
    type: Literal["saved"] = "saved"


StageEvent = StageOpened | StageText | StageClosed
AnswerEvent = RunStarted | RunText | StageEvent | Attached | RunCalls | RunAsks | RunUsage | RunError | RunFinished
CommandEvent = CommandStarted | CommandEnded
StepEvent = StepStarted | PlanStepDone | Checkpoint
TaskEvent = TaskStarted | PlanReady | Noted | CommandEvent | StepEvent | WorkspaceChanged | TaskEnded | Undone
RunEvent = AnswerEvent | TaskEvent | AttachmentSaved
Emit = Callable[[RunEvent], object]


def data_of(event: RunEvent) -> dict[str, object]:
    """The event's fields as JSON data, without its type."""
    data = {item.name: getattr(event, item.name) for item in fields(event) if item.name != "type"}
    if isinstance(event, RunError) and event.retry_after is None:
        del data["retry_after"]  # absent, not null, where no server has named a time
    return data


def as_line(event: RunEvent) -> dict[str, object]:
    """The event as `--json` prints it without its number."""
    return {"type": event.type, **{name: value for name, value in data_of(event).items() if name != KEPT}}


def sent(event: Event) -> dict[str, object]:
    """A stored event as clients receive it: `{id, type, …}`."""
    return {name: value for name, value in event.as_dict().items() if name != KEPT}
