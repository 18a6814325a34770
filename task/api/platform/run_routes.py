"""Runs and their events, approvals and grants."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from task.api.edge.rendering import EventStream, json_response, sse
from task.api.openai.documents import failures
from task.api.openai.schemas import ApprovalAnswer, RunStart
from task.api.platform.documents import AnsweredBody, ApprovalList, GrantList, RunBody, RunList
from task.api.platform.routes import Limit, Text
from task.api.service import Service
from task.blocking import run_to_completion

EVENTS = {"text/event-stream": {}}


def run_routes(service: Service) -> APIRouter:
    routes = service.routes("Runs")

    @routes.post(
        "/runs", status_code=202, response_model=None,
        responses={202: {"model": RunBody}, **failures(400, 404, 409, 413, 415)},
    )  # fmt: skip
    async def start_run(body: RunStart, request: Request) -> Response:
        """Begin an answer in a session and return at once; its events tell the rest."""
        caller = await service.caller(request)
        received = await service.received(request, caller, body)
        options = service.completion_options("runs", body, received)
        ask = (
            await service.preparing.in_new_session(caller, received, options)
            if body.session_id is None
            else await service.preparing.ask(caller, received, options, body.session_id)
        )
        return json_response((await service.begun(ask)).as_dict(), 202)

    @routes.get("/runs", response_model=None, responses={200: {"model": RunList}, **failures()})
    async def list_runs(request: Request, session_id: Text = None, limit: Limit = 50, cursor: Text = None) -> Response:
        """The caller's runs, the newest first."""
        caller, store = await service.caller(request), await service.store()
        page = await store.runs.list(caller.owner, session_id, limit, cursor)
        rows = [run.as_dict() for run in page.items]
        return json_response({"runs": rows, "count": len(rows), "cursor": page.cursor})

    _run_routes(routes, service)
    _approval_routes(routes, service)
    return routes


def _run_routes(routes: APIRouter, service: Service) -> None:
    @routes.get("/runs/{run_id}", response_model=None, responses={200: {"model": RunBody}, **failures(404)})
    async def get_run(run_id: str, request: Request) -> Response:
        """One run."""
        caller, store = await service.caller(request), await service.store()
        return json_response((await store.runs.get(caller.owner, run_id)).as_dict())

    @routes.get(
        "/runs/{run_id}/events", response_model=None, response_class=Response,
        responses={200: {"content": EVENTS}, **failures(404)},
    )  # fmt: skip
    async def listen(
        run_id: str,
        request: Request,
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """The run's events as server-sent events: those that were, then each as it comes."""
        caller, store = await service.caller(request), await service.store()
        await store.runs.get(caller.owner, run_id)
        seen = int(last_event_id) if last_event_id is not None and _is_number(last_event_id) else after
        return EventStream(_events(service, caller.owner, run_id, seen), service.heartbeat_seconds)

    @routes.post("/runs/{run_id}/cancel", response_model=None, responses={200: {"model": RunBody}, **failures(404)})
    async def cancel_run(run_id: str, request: Request) -> Response:
        """Stop a run; what it has said stays. One that is over stays as it is."""
        caller, store = await service.caller(request), await service.store()
        return json_response((await store.runs.request_cancel(caller.owner, run_id)).as_dict())


def _approval_routes(routes: APIRouter, service: Service) -> None:
    @routes.get("/approvals", response_model=None, responses={200: {"model": ApprovalList}, **failures()})
    async def list_approvals(
        request: Request, session_id: Text = None, run_id: Text = None, waiting: bool = True
    ) -> Response:
        """Questions that wait for an answer; with `waiting=false` also those that do no more."""
        caller, store = await service.caller(request), await service.store()
        found = await store.approvals.list(caller.owner, session_id=session_id, run_id=run_id, waiting=waiting)
        return json_response({"approvals": [item.as_dict() for item in found], "count": len(found)})

    @routes.post(
        "/approvals/{approval_id}", response_model=None,
        responses={200: {"model": AnsweredBody}, **failures(400, 404, 409, 413, 415)},
    )  # fmt: skip
    async def answer_approval(approval_id: str, body: ApprovalAnswer, request: Request) -> Response:
        """Answer a question; the first answer counts. After the last one of a run the run goes on as another run."""
        caller = await service.caller(request)

        async def answer_and_resume() -> Response:
            answered = await service.deciding.answer(caller, approval_id, body)
            resumed = await service.resumed(caller, answered.run_id)
            return json_response({"approval": answered.as_dict(), "resumed": resumed.as_dict() if resumed else None})

        return await run_to_completion(answer_and_resume())  # who leaves after the click has decided all the same

    @routes.get("/grants", response_model=None, responses={200: {"model": GrantList}, **failures()})
    async def list_grants(request: Request, session_id: Text = None) -> Response:
        """What was allowed for longer than one call."""
        caller, store = await service.caller(request), await service.store()
        found = await store.grants.list(caller.owner, session_id)
        return json_response({"grants": [grant.as_dict() for grant in found], "count": len(found)})

    @routes.delete("/grants/{grant_id}", status_code=204, response_model=None, responses=failures(404))
    async def revoke_grant(grant_id: str, request: Request) -> Response:
        """Take a permission back."""
        caller, store = await service.caller(request), await service.store()
        await store.grants.revoke(caller.owner, grant_id)
        return Response(status_code=204)


async def _events(service: Service, owner: str, run_id: str, after: int) -> AsyncGenerator[bytes]:
    async with aclosing(service.runner.events(owner, run_id, after)) as events:
        async for event in events:
            told: dict[str, Any] = event.as_dict()
            told.pop("request", None)
            yield sse(told, number=event.number)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
