"""The bodies of traces: what one run did, in the documented shape and with what we add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from task.api.edge.schemas import Filled, Milliseconds, RequestModel, ResponseModel, Text, Timestamp, is_none
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
