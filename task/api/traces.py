"""The platform API's traces: listed, read, rated, and replayed with another model."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import Depends, Path
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from starlette.responses import Response

from task.api.failures import failures
from task.api.runs import RunBody
from task.api.schemas import (
    Cursor,
    Filled,
    JsonResponse,
    Limit,
    Milliseconds,
    PageBody,
    RequestModel,
    ResponseModel,
    Text,
    Timestamp,
    is_none,
)
from task.api.service import CurrentKey, CurrentService, Service, router
from task.runs.replay import asked_again
from task.store.trace_records import COMMENT_CHARS, CUT, Rating, TracedCall, TraceFilter


class TracedCallBody(ResponseModel):
    """`result` is cut at 200 characters; the whole one is at `full_result`."""

    id: str = Field(validation_alias="call_id")
    name: str
    arguments: dict[str, Any]
    result: Annotated[str, AfterValidator(lambda text: text if len(text) <= CUT else f"{text[:CUT]}...")]
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
    facts: list[str]
    decisions: list[DecisionBody]
    history: int
    asked: int
    content: bool
    question: str | None
    core_traces: list[str]
    rating: Rating | None
    comment: str | None

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _with_links(cls, calls: Sequence[TracedCall], info: ValidationInfo) -> list[dict[str, Any]]:
        path = f"/traces/{info.data['trace_id']}/calls"
        bodies = ({name: getattr(call, name) for name in call.__dataclass_fields__} for call in calls)
        return [{**body, "full_result": f"{path}/{number}"} for number, body in enumerate(bodies)]

    @field_validator("config", mode="before")
    @classmethod
    def _with_model(cls, config: Mapping[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return {"model": info.data["model"], **config}


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


routes = router("Traces")


Which = Annotated[TraceFilter, Depends()]


@routes.get("/traces", response_model=TraceList, responses=failures())
async def list_traces(service: CurrentService, which: Which, limit: Limit = 50, cursor: Cursor = None) -> Any:
    """The caller's traces, the newest first; an operator's key reads everybody's."""
    page = await (await service.store()).traces.list(_owner(service), limit, cursor, which)

    def response() -> JsonResponse:  # of whole traces
        return JsonResponse(TraceList.model_validate(page, from_attributes=True).model_dump(mode="json"))

    return await asyncio.to_thread(response)


@routes.get("/traces/ratings", response_model=RatingCounts, responses=failures())
async def count_ratings(service: CurrentService, which: Which) -> Any:
    """How many of the traces that `GET /traces` lists are rated up, and how many down."""
    return await (await service.store()).traces.ratings(_owner(service), which)


@routes.get("/traces/{trace_id}", response_model=TraceBody, responses=failures(404))
async def get_trace(trace_id: str, service: CurrentService) -> Any:
    """What one run did."""
    return await (await service.store()).traces.get(_owner(service), trace_id)


@routes.get("/traces/{trace_id}/calls/{position}", response_model=ResultBody, responses=failures(404))
async def get_result(trace_id: str, position: Annotated[int, Path(ge=0)], service: CurrentService) -> Any:
    """The whole result of one call of a trace; calls count from 0."""
    return {"result": await (await service.store()).traces.result(_owner(service), trace_id, position)}


@routes.delete("/traces/{trace_id}", status_code=204, response_class=Response, responses=failures(404))
async def delete_trace(trace_id: str, service: CurrentService) -> None:
    """Remove a trace."""
    await (await service.store()).traces.delete(service.owner, trace_id)


@routes.post("/traces/{trace_id}/rating", response_model=TraceBody, responses=failures(404, 413, 415))
async def rate(trace_id: str, body: RatingRequest, service: CurrentService) -> Any:
    """Rate an answer of the caller's own, in the place of an earlier rating. It is named by its trace, its run, or the
    id that `/v1` gave it (`chatcmpl-…`, `resp_…`)."""
    return await (await service.store()).traces.rate(service.owner, trace_id, body.rating, body.comment)


@routes.delete("/traces/{trace_id}/rating", status_code=204, response_class=Response, responses=failures(404))
async def retract_rating(trace_id: str, service: CurrentService) -> None:
    """Remove the rating of an answer; one that has none stays as it is."""
    await (await service.store()).traces.rate(service.owner, trace_id, None)


@routes.post(
    "/traces/{trace_id}/replay", status_code=202, response_model=RunBody, responses=failures(404, 409, 413, 415)
)
async def replay(trace_id: str, body: ReplayRequest, key: CurrentKey, service: CurrentService) -> Any:
    """Ask again what a trace of the caller's own was asked, with another model, in a new session; the tools run, and
    ask, as in any other run."""
    async with service.runner.once(service.owner, key) as run:
        if run is None:
            request = await asked_again(await service.store(), service.caller, trace_id, body.model)
            run = await service.runner.start(request, key)
    service.runner.detach(run.run_id)
    return run


def _owner(service: Service) -> str | None:
    return None if service.caller.operator else service.owner  # an operator reads the traces of every owner
