"""The events of streams, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, RootModel

from task.api.openai.documents import AttachmentBody, ErrorDetail, ResponseModel, ToolCallBody, UsageBody
from task.api.openai.documents_responses import (
    FileCitation,
    OutputCall,
    OutputMessage,
    OutputPart,
    ResponseBody,
    UrlCitation,
)
from task.api.platform.documents import ApprovalBody

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


class _ResponseEvent(ResponseModel):
    sequence_number: int


class ResponseCame(_ResponseEvent):
    """The response as it begins, or as it ended; the last event of a stream is one that ended."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseBody


class ItemCame(_ResponseEvent):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputMessage | OutputCall


class _Place(_ResponseEvent):
    item_id: str
    output_index: int


class PartCame(_Place):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputPart


class OutputText(_Place):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[None]


class AnnotationAdded(_Place):
    type: Literal["response.output_text.annotation.added"]
    content_index: int
    annotation_index: int
    annotation: FileCitation | UrlCitation


class OutputTextDone(_Place):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[None]


class CallArguments(_Place):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class CallArgumentsDone(_Place):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


_Response = (
    ResponseCame | ItemCame | PartCame | OutputText | AnnotationAdded | OutputTextDone | CallArguments
    | CallArgumentsDone
)  # fmt: skip


class ResponseEvent(RootModel[Annotated[_Response, Field(discriminator="type")]]):
    """One event of a streamed response."""
