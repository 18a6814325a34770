"""The bodies of answers, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from task.store.records import RunStatus


class ResponseModel(BaseModel):
    model_config = ConfigDict(extra="allow")


class ErrorDetail(ResponseModel):
    message: str
    type: str
    param: str | None
    code: str | None
    display_message: str | None = None
    reference: str | None = None


class ErrorBody(ResponseModel):
    """`error` is OpenAI's; the ids are told where a run failed."""

    error: ErrorDetail
    session_id: str | None = None
    run_id: str | None = None
    trace_id: str | None = None


class CachedTokens(ResponseModel):
    cached_tokens: int


class ReasoningTokens(ResponseModel):
    reasoning_tokens: int


class UsageBody(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class FunctionBody(ResponseModel):
    name: str
    arguments: str


class ToolCallBody(ResponseModel):
    id: str
    type: Literal["function"]
    function: FunctionBody


class AttachmentBody(ResponseModel):
    """A file or a source that belongs to an answer or a stage; `file_id` is its name at `/v1/files`."""

    type: str | None = None
    title: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    reference_url: str | None = None
    reference_type: str | None = None


class CustomContentBody(ResponseModel):
    """What DIAL carries beside a message's text; absent where there is nothing."""

    attachments: list[AttachmentBody]


class AnswerBody(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCallBody] | None = None
    custom_content: CustomContentBody | None = None


class ChoiceBody(ResponseModel):
    index: int
    message: AnswerBody
    logprobs: None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]


class TracedCallBody(ResponseModel):
    """`result` is cut at 200 characters; the whole one is at `full_result`."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: str
    full_result_length: int
    full_result: str
    duration_ms: float
    timestamp: str
    failed: bool


class TokensBody(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int


class AskedCallBody(ResponseModel):
    """`arguments` are JSON text, None where contents are not kept."""

    id: str
    name: str
    arguments: str | None


class TurnBody(ResponseModel):
    """`size` counts characters; `duration_ms` is what the model or the tool took, before `timestamp`."""

    role: str
    content: Any
    timestamp: str
    size: int
    tool_calls: list[AskedCallBody] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    duration_ms: float | None = None
    usage: TokensBody | None = None


class DecisionBody(ResponseModel):
    """What was decided about a call, by which rule, grant or person; `card` is what a person was shown."""

    call_id: str
    tool: str
    verdict: Literal["allowed", "denied", "deferred"]
    reason: str
    by: str
    card: dict[str, Any] | None
    timestamp: str


class TraceRow(ResponseModel):
    trace_id: str
    started_at: str
    completed_at: str | None
    duration_ms: float | None
    status: str
    model: str
    door: str
    session_id: str | None
    run_id: str | None
    experiment: str | None
    total_tokens: int
    cost: float | None
    error: str | None


class TraceBody(TraceRow):
    turns: list[TurnBody]
    tool_calls: list[TracedCallBody]
    config: dict[str, Any]
    usage: dict[str, TokensBody]
    limits: list[str]
    warnings: list[str]
    decisions: list[DecisionBody]
    history: int
    asked: int
    content: bool


class TraceList(ResponseModel):
    traces: list[TraceBody]
    count: int
    cursor: str | None


class ResultBody(ResponseModel):
    result: str


class CompletionBody(ResponseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: UsageBody
    status: RunStatus
    session_id: str | None
    run_id: str
    trace_id: str
    trace: TraceBody | None


class FunctionDelta(ResponseModel):
    name: str | None = None
    arguments: str | None = None


class CallDelta(ResponseModel):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class AttachmentDelta(AttachmentBody):
    index: int


class CustomContentDelta(ResponseModel):
    attachments: list[AttachmentDelta]


class DeltaBody(ResponseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None
    custom_content: CustomContentDelta | None = None


class DeltaChoice(ResponseModel):
    index: int
    delta: DeltaBody
    logprobs: None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None


class ChunkBody(ResponseModel):
    """One chunk of a streamed completion; the stream ends with `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[DeltaChoice]
    usage: UsageBody | None = None
    status: RunStatus | None = Field(default=None, description="In the last chunk with a choice.")
    session_id: str | None = None
    run_id: str | None = None
    trace_id: str | None = None


class ModelBody(ResponseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[ModelBody]


class FileBody(ResponseModel):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str
    url: str
    content_type: str


class FileList(ResponseModel):
    object: Literal["list"]
    data: list[FileBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(ResponseModel):
    id: str
    object: Literal["file"]
    deleted: bool


Responses = dict[int | str, dict[str, Any]]
REFERENCE = "#/components/schemas/{model}"
# By name: as a model FastAPI would build it anew for every failure of every route.
_ERROR = {"application/json": {"schema": {"$ref": REFERENCE.format(model="ErrorBody")}}}

_MEANINGS = {
    400: "The request does not fit; the message says what does not.",
    401: "No key, or one that is not known.",
    403: "From another web page, or in the mode `open` from another machine.",
    404: "There is no such thing, or it is somebody else's.",
    409: "It was changed or has ended meanwhile.",
    413: "The body is too large.",
    415: "The body is of another type.",
    429: "Too many requests; `Retry-After` says when to come again.",
    502: "The model refused or failed.",
    503: "The store, DIAL Core or the model cannot be used now.",
    504: "The model did not answer in time.",
}


def failures(*more: int) -> Responses:
    """The failures of a route: those that every route has, and `more`."""
    models = (502, 504) if 409 in more else ()
    statuses = sorted({400, 401, 403, 429, 503, *more, *models})
    return {status: {"description": _MEANINGS[status], "content": _ERROR} for status in statuses}
