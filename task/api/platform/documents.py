"""The bodies of the platform API, of runs and of approvals, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any, Literal

from task.api.openai.documents import AttachmentBody, ResponseModel, ToolCallBody, TraceBody
from task.store.records import RunStatus


class ChatBody(ResponseModel):
    response: str
    attachments: list[AttachmentBody]
    status: RunStatus
    session_id: str
    trace: TraceBody
    run_id: str


class SessionStarted(ResponseModel):
    session_id: str
    started_at: str


class SessionEnded(ResponseModel):
    session_id: str
    message_count: int
    ended_at: str


class SaidBody(ResponseModel):
    role: str
    content: Any


class SessionBody(ResponseModel):
    session_id: str
    started_at: str
    ended_at: str | None = None
    status: Literal["active", "completed"]
    messages: list[SaidBody]
    traces: list[str]
    title: str
    parent: str | None


class SessionRow(ResponseModel):
    session_id: str
    title: str
    status: Literal["active", "completed"]
    started_at: str
    updated_at: str
    ended_at: str | None
    parent: str | None


class SessionList(ResponseModel):
    sessions: list[SessionRow]
    count: int
    cursor: str | None


class MessageBody(ResponseModel):
    role: str
    content: Any = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    attachments: list[AttachmentBody] | None = None
    failed: bool = False


class MessageList(ResponseModel):
    session_id: str
    messages: list[MessageBody]


class RunBody(ResponseModel):
    run_id: str
    session_id: str | None
    trace_id: str | None
    experiment: str | None
    status: RunStatus
    started_at: str
    ended_at: str | None
    error: str | None


class RunList(ResponseModel):
    runs: list[RunBody]
    count: int
    cursor: str | None


class DecidedBody(ResponseModel):
    """`arguments` replace those of the call; `grant` names what was allowed for longer than the call."""

    allowed: bool
    reason: str
    arguments: dict[str, Any] | None
    grant: str | None


class ApprovalBody(ResponseModel):
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
    answered_at: str | None
    answer: DecidedBody | None


class ApprovalList(ResponseModel):
    approvals: list[ApprovalBody]
    count: int


class AnsweredBody(ResponseModel):
    """`resumed` is the run that goes on with the suspended one, once all its questions are answered."""

    approval: ApprovalBody
    resumed: RunBody | None


class GrantBody(ResponseModel):
    grant_id: str
    session_id: str | None
    created_at: str
    expires_at: str | None
    told: str
    scope: Literal["call", "prefix", "tool"]
    tool: str
    principal: str
    conversation: str
    expires: float
    digest: str
    prefix: str
    once: bool
    widens: bool
    tainted: bool


class GrantList(ResponseModel):
    grants: list[GrantBody]
    count: int
