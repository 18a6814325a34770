"""The bodies of the platform API: chat, sessions, traces, runs, approvals and grants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from task.api.edge.schemas import (
    AttachmentBody,
    Json,
    RequestModel,
    ResponseModel,
    Timestamp,
    ToolCallBody,
    is_none,
)
from task.api.openai.schemas import ChatCompletionRequest, ChatFields, SessionId, UserMessage
from task.api.platform.trace_body import PageBody, TraceBody
from task.conversation.replies import Answer
from task.permissions.grants import Grant
from task.store.records import ApprovalStatus, Origin, RunStatus

SessionStatus = Literal["active", "completed"]


class ChatRequest(ChatFields):
    """`POST /chat`, which takes no tools of the caller."""

    @property
    def unknown(self) -> list[str]:
        carried = any(isinstance(each, UserMessage) and each.tools for each in self.messages)
        return sorted([*super().unknown, *(["messages.tools"] if carried else [])])


class RunStart(ChatCompletionRequest):
    """`POST /runs`: a run that is followed by its events; without `session_id` it gets a session of its own.

    `origin` is where that session is started: the web page gives `page`, so that it lists a person's own conversations
    apart from those of programs."""

    origin: Literal["page", "api"] = "api"


class SessionStart(RequestModel):
    title: str = Field(default="", max_length=500)


class SessionEnd(RequestModel):
    session_id: SessionId


class SessionChange(RequestModel):
    """What changes; what is not given stays as it is."""

    title: str | None = Field(default=None, max_length=500)
    pinned: bool | None = None


class SessionsDelete(RequestModel):
    """With `families` also the sessions that branched off each other with these."""

    session_ids: list[SessionId] = Field(min_length=1, max_length=1000)
    families: bool = False


class SessionsDeleted(ResponseModel):
    deleted: int


class SessionBranch(RequestModel):
    """`keep`: how many of the session's messages the branch begins with, as `/session/{id}/messages` counts them."""

    keep: int = Field(ge=0)


class ApprovalAnswer(RequestModel):
    """`always` also allows what the card's `grant_description` names; `arguments` replace those of the call."""

    decision: Literal["approve", "always", "deny"]
    reason: str = Field(default="", max_length=1000)
    arguments: Json | None = None

    @property
    def answer(self) -> Answer:
        answer = Answer.of(self.decision, self.reason)
        return replace(answer, arguments=self.arguments) if answer.allowed else answer


class ChatBody(ResponseModel):
    response: str
    attachments: list[AttachmentBody]
    status: RunStatus
    session_id: str
    trace: TraceBody | None
    run_id: str


class PersonaList(ResponseModel):
    """`descriptions` are the first lines of the personas' texts."""

    personas: list[str]
    descriptions: dict[str, str]
    default: str | None


class SessionStarted(ResponseModel):
    session_id: str
    started_at: Timestamp


class SessionEnded(ResponseModel):
    session_id: str
    message_count: int
    ended_at: Timestamp


class SaidBody(ResponseModel):
    role: str
    content: Any


class SessionBody(ResponseModel):
    session_id: str
    started_at: Timestamp
    ended_at: Timestamp | None = Field(default=None, exclude_if=is_none)
    status: SessionStatus
    messages: list[SaidBody] = Field(validation_alias="visible_messages")
    traces: list[str]
    title: str
    parent: str | None


class SessionRow(ResponseModel):
    session_id: str
    title: str
    status: SessionStatus
    started_at: Timestamp
    updated_at: Timestamp
    ended_at: Timestamp | None
    parent: str | None
    family: str
    origin: Origin
    pinned: bool
    snippet: str = ""


class SessionList(PageBody):
    sessions: list[SessionRow] = Field(validation_alias="items")


class MessageBody(ResponseModel):
    """`unsourced`: an answer whose tool results are not known; it counts as text from outside.

    `scrub_pii`: personal data is removed from what the model reads of it, where its provider can."""

    role: str
    content: Any = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    attachments: list[AttachmentBody] | None = None
    failed: bool = False
    unsourced: bool = False
    scrub_pii: bool = False


class MessageList(ResponseModel):
    session_id: str
    messages: list[MessageBody]
    status: SessionStatus


class VersionsBody(ResponseModel):
    """The versions of the message at `position`, oldest first, each by a session that has it; `shown` counts from 0."""

    position: int
    sessions: list[str]
    shown: int


class VersionList(ResponseModel):
    family: str
    versions: list[VersionsBody]


class RunBody(ResponseModel):
    run_id: str
    session_id: str | None
    trace_id: str | None
    experiment: str | None
    status: RunStatus
    started_at: Timestamp
    ended_at: Timestamp | None
    error: str | None


class RunList(PageBody):
    runs: list[RunBody] = Field(validation_alias="items")


class DecidedBody(ResponseModel):
    """`arguments` replace those of the call, whose digest is then `grant`."""

    allowed: bool
    reason: str = Field(validation_alias="remark")
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
    code: str = ""
    card: dict[str, Any]
    status: ApprovalStatus
    asked_at: Timestamp
    expires_at: Timestamp
    answered_at: Timestamp | None
    answer: DecidedBody | None


class ApprovalList(ResponseModel):
    approvals: list[ApprovalBody]
    count: int


class AnsweredBody(ResponseModel):
    """`resumed` is the run that continues the suspended one, once all its questions are answered."""

    approval: ApprovalBody
    resumed: RunBody | None


@pydantic_dataclass(frozen=True, kw_only=True)
class GrantBody(Grant):
    """A grant, until when it is stored, and in words what it allows."""

    grant_id: str
    session_id: str | None
    created_at: Timestamp
    expires_at: Timestamp | None
    description: str = ""


class GrantList(ResponseModel):
    grants: list[GrantBody]
    count: int
