"""The bodies of the platform API: chat, sessions, traces, runs, approvals and grants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from task.api.edge.schemas import (
    AttachmentBody,
    Filled,
    Json,
    Milliseconds,
    RequestModel,
    ResponseModel,
    Text,
    Timestamp,
    ToolCallBody,
    is_none,
)
from task.api.openai.schemas import ChatCompletionRequest, ChatFields, SessionId, UserMessage
from task.conversation.replies import Answer
from task.permissions.grants import Grant
from task.store.records import ApprovalStatus, Origin, RunStatus
from task.store.trace_records import COMMENT_CHARS, CUT, Rating, TracedCall


def _excerpt(result: str) -> str:
    return result if len(result) <= CUT else f"{result[:CUT]}..."


class TracedCallBody(ResponseModel):
    """`result` is cut at 200 characters; the whole one is at `full_result`."""

    id: str = Field(validation_alias="call_id")
    name: str
    arguments: dict[str, Any]
    result: Annotated[str, AfterValidator(_excerpt)]
    full_result_length: int = Field(validation_alias="result_length")
    full_result: str
    duration_ms: Milliseconds = Field(validation_alias="seconds")
    timestamp: Timestamp = Field(validation_alias="at")
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


class _TurnFields(ResponseModel):
    content: Any
    timestamp: Timestamp = Field(validation_alias="at")
    size: int
    duration_ms: Milliseconds | None = Field(default=None, validation_alias="seconds", exclude_if=is_none)
    usage: TokensBody | None = Field(default=None, exclude_if=is_none)


class TurnBody(_TurnFields):
    """`size` counts characters; `duration_ms` is what the model or the tool took, before `timestamp`."""

    role: Literal["system", "developer", "user"]


class AssistantTurnBody(_TurnFields):
    role: Literal["assistant"]
    tool_calls: Annotated[list[AskedCallBody] | None, BeforeValidator(lambda calls: calls or None)]


class ToolTurnBody(_TurnFields):
    role: Literal["tool"]
    name: str | None
    tool_call_id: str | None


class DecisionBody(ResponseModel):
    """What was decided about a call, by which rule, grant or person; `card` is what a person was shown."""

    call_id: str
    tool: str
    verdict: Literal["allowed", "denied", "deferred"]
    reason: str
    by: str
    card: dict[str, Any] | None
    timestamp: Timestamp = Field(validation_alias="at")


class TraceBody(ResponseModel):
    trace_id: str
    started_at: Timestamp
    completed_at: Timestamp | None
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
    turns: list[Annotated[TurnBody | AssistantTurnBody | ToolTurnBody, Field(discriminator="role")]]
    tool_calls: list[TracedCallBody]
    config: dict[str, Any]
    usage: dict[str, TokensBody]
    limits: list[str]
    warnings: list[str]
    decisions: list[DecisionBody]
    history: int
    asked: int
    content: bool
    question: str | None
    rating: Rating | None
    comment: str | None

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _with_links(cls, calls: Sequence[TracedCall], info: ValidationInfo) -> list[dict[str, Any]]:
        path = f"/traces/{info.data['trace_id']}/calls"
        return [{**asdict(call), "full_result": f"{path}/{number}"} for number, call in enumerate(calls)]

    @field_validator("config", mode="before")
    @classmethod
    def _with_model(cls, config: Mapping[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return {"model": info.data["model"], **config}


class PageBody(ResponseModel):
    """`cursor` is for the next page and null on the last one."""

    count: int
    cursor: str | None


class TraceList(PageBody):
    traces: list[TraceBody] = Field(validation_alias="items")


class ResultBody(ResponseModel):
    result: str


class RatingRequest(RequestModel):
    rating: Rating
    comment: Annotated[Text, Field(max_length=COMMENT_CHARS)] | None = None


class RatingCounts(ResponseModel):
    up: int
    down: int


class ReplayRequest(RequestModel):
    model: Annotated[Filled, Field(max_length=200)]


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
