"""Runs and their events, approvals and grants."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import Header, Query, Request
from starlette.responses import Response

from task.api.edge.failures import failures
from task.api.edge.rendering import EventStream, sse
from task.api.platform.routes import Limit, QueryText
from task.api.platform.runner import Runner
from task.api.platform.schemas import (
    AnsweredBody,
    ApprovalAnswer,
    ApprovalList,
    GrantList,
    RunBody,
    RunList,
    RunStart,
)
from task.api.service import CurrentCaller, CurrentService, CurrentStore, router
from task.blocking import run_to_completion

EVENTS = {"text/event-stream": {}}

routes = router("Runs")


@routes.post("/runs", status_code=202, response_model=RunBody, responses=failures(400, 404, 409, 413, 415))
async def start_run(body: RunStart, request: Request, service: CurrentService, caller: CurrentCaller) -> Any:
    """Start an answer in a session and return at once; its events follow it."""
    received = await service.read(request, caller, body)
    options = service.completion_options("runs", body, received)
    return await service.start_in_background(await service.prepare(caller, received, options, body.session_id))


@routes.get("/runs", response_model=RunList, responses=failures())
async def list_runs(
    caller: CurrentCaller,
    store: CurrentStore,
    session_id: QueryText = None,
    limit: Limit = 50,
    cursor: QueryText = None,
) -> Any:
    """The caller's runs, the newest first."""
    page = await store.runs.list(caller.owner, session_id, limit, cursor)
    return {"runs": page.items, "count": len(page.items), "cursor": page.cursor}


@routes.get("/runs/{run_id}", response_model=RunBody, responses=failures(404))
async def get_run(run_id: str, caller: CurrentCaller, store: CurrentStore) -> Any:
    """One run."""
    return await store.runs.get(caller.owner, run_id)


@routes.get("/runs/{run_id}/events", response_class=Response, responses={200: {"content": EVENTS}, **failures(404)})
async def listen(
    run_id: str,
    service: CurrentService,
    caller: CurrentCaller,
    store: CurrentStore,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The run's events as server-sent events: those of before, then each as it comes."""
    await store.runs.get(caller.owner, run_id)
    seen = int(last_event_id) if last_event_id is not None and _is_number(last_event_id) else after
    return EventStream(_events(service.runner, caller.owner, run_id, seen), service.answers.heartbeat)


@routes.post("/runs/{run_id}/cancel", response_model=RunBody, responses=failures(404))
async def cancel_run(run_id: str, caller: CurrentCaller, store: CurrentStore) -> Any:
    """Stop a run; what it has written stays. One that is over stays as it is."""
    return await store.runs.request_cancel(caller.owner, run_id)


@routes.get("/approvals", response_model=ApprovalList, responses=failures())
async def list_approvals(
    caller: CurrentCaller,
    store: CurrentStore,
    session_id: QueryText = None,
    run_id: QueryText = None,
    waiting: bool = True,
) -> Any:
    """Questions that wait for an answer; with `waiting=false` also those that no longer do."""
    found = await store.approvals.list(caller.owner, session_id=session_id, run_id=run_id, waiting=waiting)
    return {"approvals": found, "count": len(found)}


@routes.post(
    "/approvals/{approval_id}", response_model=AnsweredBody, responses=failures(400, 404, 409, 413, 415)
)  # fmt: skip
async def answer_approval(
    approval_id: str, body: ApprovalAnswer, service: CurrentService, caller: CurrentCaller
) -> Any:
    """Answer a question; the first answer counts. After the last one of a run another run continues it."""

    async def answer_and_resume() -> dict[str, Any]:
        answered = await service.decisions.answer(caller, approval_id, body)
        return {"approval": answered, "resumed": await service.resume(caller, answered.run_id)}

    return await run_to_completion(answer_and_resume())  # a person who leaves after the click has still decided


@routes.get("/grants", response_model=GrantList, responses=failures())
async def list_grants(caller: CurrentCaller, store: CurrentStore, session_id: QueryText = None) -> Any:
    """What was allowed for longer than one call."""
    found = await store.grants.list(caller.owner, session_id)
    return {"grants": [grant.as_dict() for grant in found], "count": len(found)}


@routes.delete("/grants/{grant_id}", status_code=204, response_class=Response, responses=failures(404))
async def revoke_grant(grant_id: str, caller: CurrentCaller, store: CurrentStore) -> None:
    """Take a permission back."""
    await store.grants.revoke(caller.owner, grant_id)


async def _events(runner: Runner, owner: str, run_id: str, after: int) -> AsyncGenerator[bytes]:
    async with aclosing(runner.events(owner, run_id, after)) as events:
        async for event in events:
            data = {name: value for name, value in event.as_dict().items() if name != "request"}
            yield sse(data, number=event.number)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
