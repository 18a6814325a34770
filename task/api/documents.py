"""The bodies of answers, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Told(BaseModel):
    model_config = ConfigDict(extra="allow")


class ErrorDetail(Told):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Told):
    error: ErrorDetail


class UsageBody(Told):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class FunctionBody(Told):
    name: str
    arguments: str


class ToolCallBody(Told):
    id: str
    type: Literal["function"]
    function: FunctionBody


class AnswerBody(Told):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCallBody] | None = None


class ChoiceBody(Told):
    index: int
    message: AnswerBody
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]


class TracedCallBody(Told):
    """`result` is cut at 200 characters; the whole one is at `full_result`."""

    name: str
    arguments: dict[str, Any]
    result: str
    full_result_length: int
    full_result: str
    duration_ms: float
    timestamp: str


class TurnBody(Told):
    role: str
    content: Any
    timestamp: str


class TraceRow(Told):
    trace_id: str
    started_at: str
    completed_at: str | None
    status: str
    model: str
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
    warnings: list[str]


class TraceList(Told):
    traces: list[TraceBody]
    count: int
    cursor: str | None


class ResultBody(Told):
    result: str


class CompletionBody(Told):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: UsageBody
    session_id: str | None
    run_id: str
    trace_id: str
    trace: TraceBody | None


class ResponseBody(Told):
    """OpenAI's response. In a stream every event is `{type, sequence_number, …}`, the last one holds this body."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "failed", "cancelled", "in_progress"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    previous_response_id: str | None
    session_id: str | None
    run_id: str
    trace_id: str


class ItemList(Told):
    """Items of the Responses API."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(Told):
    id: str
    object: Literal["response"]
    deleted: bool


class DeltaChoice(Told):
    index: int
    delta: dict[str, Any]
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None


class ChunkBody(Told):
    """One chunk of a streamed completion; the stream ends with `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[DeltaChoice]
    usage: UsageBody | None = None


class ModelBody(Told):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Told):
    object: Literal["list"]
    data: list[ModelBody]


class FileBody(Told):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    url: str
    content_type: str


class FileList(Told):
    object: Literal["list"]
    data: list[FileBody]
    has_more: bool


class FileDeleted(Told):
    id: str
    object: Literal["file"]
    deleted: bool


class ChatBody(Told):
    response: str
    session_id: str
    trace: TraceBody
    run_id: str


class SessionStarted(Told):
    session_id: str
    started_at: str


class SessionEnded(Told):
    session_id: str
    message_count: int
    ended_at: str


class SaidBody(Told):
    role: str
    content: Any


class SessionBody(Told):
    session_id: str
    started_at: str
    status: Literal["active", "completed"]
    messages: list[SaidBody]
    traces: list[str]
    title: str
    parent: str | None


class SessionRow(Told):
    session_id: str
    title: str
    status: Literal["active", "completed"]
    started_at: str
    updated_at: str


class SessionList(Told):
    sessions: list[SessionRow]
    count: int
    cursor: str | None


class MessageList(Told):
    session_id: str
    messages: list[SaidBody]


class RunBody(Told):
    run_id: str
    session_id: str | None
    trace_id: str | None
    experiment: str | None
    status: Literal["running", "finished", "limited", "suspended", "cancelled", "failed", "interrupted"]
    started_at: str
    ended_at: str | None
    error: str | None


class RunList(Told):
    runs: list[RunBody]
    count: int
    cursor: str | None


class ApprovalBody(Told):
    approval_id: str
    session_id: str | None
    run_id: str | None
    call_id: str
    tool: str
    arguments: dict[str, Any]
    digest: str
    card: dict[str, Any]
    status: Literal["waiting", "allowed", "denied", "expired"]
    asked_at: str
    expires_at: str


class ApprovalList(Told):
    approvals: list[ApprovalBody]
    count: int


class AnsweredBody(Told):
    """`resumed` is the run that goes on with the suspended one, once all its questions are answered."""

    approval: ApprovalBody
    resumed: RunBody | None


class GrantBody(Told):
    grant_id: str
    session_id: str | None
    created_at: str
    expires_at: str | None
    told: str


class GrantList(Told):
    grants: list[GrantBody]
    count: int


Responses = dict[int | str, dict[str, Any]]

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
    return {status: {"model": ErrorBody, "description": _MEANINGS[status]} for status in statuses}
