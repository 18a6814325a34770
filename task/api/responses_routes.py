"""`/v1/responses`: OpenAI's Responses API over runs in sessions."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from task.api.asks import Ask, Manner
from task.api.completions import NOBODY, failed
from task.api.documents import ResponseBody, failures
from task.api.identity import Who
from task.api.incoming import Received
from task.api.rendering import json_response
from task.api.responses_input import ResponseRequest, messages_of
from task.api.responses_output import response_body, response_events, run_id_of
from task.api.schemas import Ours
from task.api.service import Service
from task.errors import NotFound

STREAM = {"text/event-stream": {}}


def responses_routes(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])

    @routes.post(
        "/responses", response_model=None,
        responses={200: {"model": ResponseBody, "content": STREAM}, **failures(400, 404, 409, 413, 415)},
    )  # fmt: skip
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        """Answer an input, alone or after an earlier response; with `stream` as server-sent events."""
        who, previous = await service.who(request), body.previous_response_id
        received = await service.reader.read(who, messages_of(body), service.model_of(body.model))
        manner = _manner(service, body, received)
        ask = await (
            service.preparing.in_new_session(who, received, manner)
            if previous is None
            else _after(service, who, received, manner, previous)
        )
        active = await service.started(ask)
        if body.stream:
            return await service.answers.opened(active, response_events(service.runner, active, previous))
        if not await service.answers.ended(active, request):
            return Response(status_code=NOBODY)
        if active.result is not None and active.result.error is not None:
            return failed(active)
        return json_response(response_body(active, previous))

    return routes


def _manner(service: Service, body: ResponseRequest, received: Received) -> Manner:
    ours = Ours(model=body.model, experiment=body.experiment, permission_mode=body.permission_mode)
    options = service.sampled(temperature=body.temperature, top_p=body.top_p, max_tokens=body.max_output_tokens)
    tools = [tool.model_dump(exclude_none=True, exclude={"type"}) for tool in body.tools or ()]
    choice = body.tool_choice
    named = choice if choice is None or isinstance(choice, str) else _named(choice.name)
    return replace(service.manner("responses", ours, received, options, None), tools=tuple(tools), choice=named)


def _named(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


async def _after(service: Service, who: Who, received: Received, manner: Manner, previous: str) -> Ask:
    """The run that follows the previous response; where others have followed it already, in a branch."""
    store = await service.store()
    run = await store.runs.get(who.owner, run_id_of(previous))
    if run.session_id is None or run.trace_id is None:
        raise NotFound(f"the response {previous!r} can no longer be gone on with")
    newest = await store.runs.list(who.owner, run.session_id, 1)
    if newest.items[0].run_id == run.run_id:
        return await service.preparing.ask(who, received, manner, run.session_id, whole=True)
    trace = await store.traces.get(who.owner, run.trace_id)
    branch = await store.sessions.branch(who.owner, run.session_id, trace.history + len(trace.turns))
    return await service.preparing.ask(who, received, manner, branch.session_id, whole=True)
