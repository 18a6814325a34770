"""Runs through the API: started, followed as events, stopped; with their approvals and grants."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, fields, replace
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_args, get_type_hints

from fastapi import Header, Query
from pydantic import Field, RootModel, create_model
from pydantic.dataclasses import dataclass as pydantic_dataclass
from starlette.responses import Response

from task.api.failures import ErrorDetail, failures
from task.api.messages import ChatCompletionRequest
from task.api.schemas import (
    AttachmentBody,
    CachedTokens,
    Cursor,
    Json,
    Limit,
    PageBody,
    QueryText,
    ReasoningTokens,
    RequestModel,
    ResponseModel,
    Timestamp,
    ToolCallBody,
)
from task.api.service import CurrentKey, CurrentService, EventStream, router, sse, stream_of
from task.closing import run_to_completion
from task.conversation.inputs import Answer
from task.errors import StoreUnavailable
from task.permissions.gate import Grant
from task.runs.events import KEPT, AnswerEvent, sent
from task.store.records import ApprovalStatus, RunStatus


class RunStart(ChatCompletionRequest):
    """`POST /runs`: a run that is followed by its events; without `session_id` it gets a session of its own.

    `origin` is where that session is started: the web page gives `page`, so that it lists a person's own conversations
    apart from those of programs."""

    origin: Literal["page", "api"] = "api"


class ApprovalAnswer(RequestModel):
    """`always` also allows what the card's `grant_description` names; `arguments` replace those of the call."""

    decision: Literal["approve", "always", "deny"]
    reason: str = Field(default="", max_length=1000)
    arguments: Json | None = None

    @property
    def answer(self) -> Answer:
        answer = Answer.of(self.decision, self.reason)
        return replace(answer, arguments=self.arguments) if answer.allowed else answer


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


_BODIES: dict[str, Any] = {  # of the fields whose data are objects
    "error": ErrorDetail,
    "tool_calls": list[ToolCallBody],
    "attachment": AttachmentBody,
    "approvals": list[ApprovalBody],
    "prompt_tokens_details": CachedTokens,
    "completion_tokens_details": ReasoningTokens,
}


def _body(event: type[Any]) -> type[ResponseModel]:
    types, described = get_type_hints(event) | _BODIES, dict[str, Any](id=(Annotated[int, Field(ge=1)], ...))
    for item in sorted(fields(event), key=lambda item: item.name != "type"):  # the type first
        if item.name != KEPT:
            described[item.name] = (types[item.name], None if item.default is None else ...)
    return create_model(event.__name__, __base__=ResponseModel, **described)


_EVERY: Any = reduce(or_, map(_body, get_args(AnswerEvent)))


class RunEvent(RootModel[Annotated[_EVERY, Field(discriminator="type")]]):
    """One event of a run. The stream ends after `finished`."""


logger = logging.getLogger(__name__)
routes = router("Runs")


@routes.post("/runs", status_code=202, response_model=RunBody, responses=failures(404, 409, 413, 415))
async def start_run(body: RunStart, key: CurrentKey, service: CurrentService) -> Any:
    """Start an answer in a session and return at once; its events follow it."""
    async with service.runner.once(service.owner, key) as run:
        if run is None:
            sent, options = await service.completion("runs", body)
            session = (body.session_id, body.origin)
            prepared = await service.preparing.in_session(service.caller, sent, options, *session)
            run = await service.runner.start(prepared, key)
    service.runner.detach(run.run_id)
    return run


@routes.get("/runs", response_model=RunList, responses=failures())
async def list_runs(
    service: CurrentService, session_id: QueryText = None, limit: Limit = 50, cursor: Cursor = None
) -> Any:
    """The caller's runs, the newest first."""
    return await (await service.store()).runs.list(service.owner, session_id, limit, cursor)


@routes.get("/runs/{run_id}", response_model=RunBody, responses=failures(404))
async def get_run(run_id: str, service: CurrentService) -> Any:
    """One run."""
    return await (await service.store()).runs.get(service.owner, run_id)


@routes.get("/runs/{run_id}/events", response_class=Response, responses={**stream_of(RunEvent), **failures(404)})
async def listen(
    run_id: str,
    service: CurrentService,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The run's events as server-sent events: past ones first, then each as it happens."""
    await (await service.store()).runs.get(service.owner, run_id)
    number = last_event_id or ""
    seen = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else after

    async def parts() -> AsyncGenerator[bytes]:
        try:
            async with aclosing(service.runner.events(service.owner, run_id, seen, sure=True)) as events:
                async for event in events:
                    yield sse(sent(event), number=event.number)
        except StoreUnavailable as error:  # a stream without a last event is followed again
            logger.warning("the events of %s end early: %s", run_id, error)

    return EventStream(parts(), service.options.heartbeat_seconds)


@routes.post("/runs/{run_id}/cancel", response_model=RunBody, responses=failures(404))
async def cancel_run(run_id: str, service: CurrentService) -> Any:
    """Stop a run; what it has written stays. One that is over stays as it is."""
    return await service.runner.stop(service.owner, run_id)


@routes.get("/approvals", response_model=ApprovalList, responses=failures())
async def list_approvals(
    service: CurrentService, session_id: QueryText = None, run_id: QueryText = None, waiting: bool = True
) -> Any:
    """Open questions; with `waiting=false` also those that are closed."""
    store = await service.store()
    found = await store.approvals.list(service.owner, session_id=session_id, run_id=run_id, waiting=waiting)
    return {"approvals": found, "count": len(found)}


@routes.post("/approvals/{approval_id}", response_model=AnsweredBody, responses=failures(404, 409, 413, 415))
async def answer_approval(approval_id: str, body: ApprovalAnswer, key: CurrentKey, service: CurrentService) -> Any:
    """Answer a question; the first answer counts, and the same one again gets the same reply.

    After the last answer of a run another run continues it.
    """

    async def answer_and_resume() -> dict[str, Any]:
        async with service.runner.once(service.owner, key) as resumed:
            if resumed is None:
                answered = await service.preparing.answer(service.caller, approval_id, body.answer)
                prepared = await service.preparing.resumed(service.caller, answered.run_id or "")
                resumed = await service.runner.start(prepared, key) if prepared is not None else None
        if resumed is not None:
            service.runner.detach(resumed.run_id)
        return {"approval": await (await service.store()).approvals.get(service.owner, approval_id), "resumed": resumed}

    return await run_to_completion(answer_and_resume())  # a user who leaves after the click has still decided


@routes.get("/grants", response_model=GrantList, responses=failures())
async def list_grants(service: CurrentService, session_id: QueryText = None) -> Any:
    """Grants: what was allowed for longer than one call."""
    found = await (await service.store()).grants.list(service.owner, session_id)
    return {"grants": [{**grant.data, **asdict(grant)} for grant in found], "count": len(found)}


@routes.delete("/grants/{grant_id}", status_code=204, response_class=Response, responses=failures(404))
async def revoke_grant(grant_id: str, service: CurrentService) -> None:
    """Revoke a grant."""
    await (await service.store()).grants.revoke(service.owner, grant_id)
