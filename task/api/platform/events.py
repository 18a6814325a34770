"""The events of a run, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, RootModel

from task.api.edge.failures import ErrorDetail
from task.api.edge.schemas import AttachmentBody, ResponseModel, ToolCallBody, UsageBody
from task.api.platform.schemas import ApprovalBody

Ended = Literal["finished", "limited", "suspended", "cancelled", "failed", "interrupted"]


class _RunEvent(ResponseModel):
    id: Annotated[int, Field(ge=1)]


class RunStarted(_RunEvent):
    type: Literal["started"]
    run_id: str
    session_id: str | None
    trace_id: str | None
    model: str
    messages: int


class RunText(_RunEvent):
    type: Literal["text", "reasoning"]
    text: str


class StageOpened(_RunEvent):
    type: Literal["stage_opened"]
    stage: int
    parent: int | None
    name: str


class StageText(_RunEvent):
    type: Literal["stage_text"]
    stage: int
    text: str


class StageClosed(_RunEvent):
    type: Literal["stage_closed"]
    stage: int
    name: str
    status: Literal["completed", "failed"]


class Attached(_RunEvent):
    type: Literal["attachment"]
    stage: int | None
    attachment: AttachmentBody


class RunCalls(_RunEvent):
    type: Literal["tool_calls"]
    tool_calls: list[ToolCallBody]


class RunAsks(_RunEvent):
    type: Literal["approval"]
    approvals: list[ApprovalBody]
    text: str


class RunUsage(UsageBody):
    id: Annotated[int, Field(ge=1)]
    type: Literal["usage"]
    cost: float | None
    duration_ms: float | None


class RunError(_RunEvent):
    type: Literal["error"]
    error: ErrorDetail
    status: int
    retry_after: int | None = None


class RunFinished(_RunEvent):
    type: Literal["finished"]
    status: Ended
    run_id: str
    session_id: str | None
    trace_id: str | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None
    limit: str | None = None
    messages: int | None = None


_Run = (
    RunStarted | RunText | StageOpened | StageText | StageClosed | Attached | RunCalls | RunAsks | RunUsage | RunError
    | RunFinished
)  # fmt: skip


class RunEvent(RootModel[Annotated[_Run, Field(discriminator="type")]]):
    """One event of a run. The stream ends after `finished`."""
