"""`/v1/responses`: OpenAI's Responses API over runs in sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from task.api.edge.identity import ApiCaller
from task.api.edge.rendering import json_response
from task.api.openai.completions import NOBODY, broken, failed
from task.api.openai.documents import failures
from task.api.openai.documents_responses import ItemList, ResponseBody, ResponseDeleted
from task.api.openai.incoming import IncomingMessages
from task.api.openai.responses_input import ResponseRequest, messages_of, options_of
from task.api.openai.responses_items import Order, input_items, page_of_items
from task.api.openai.responses_output import response_body, response_events, spoken
from task.api.openai.responses_stored import DOOR, StoredResponse, previous_response, stored_response, take_back
from task.api.openai.schemas import Ours
from task.api.platform.idempotency import given_before
from task.api.platform.replying import decided_before
from task.api.platform.run_request import RunOptions, RunRequest
from task.api.service import Service
from task.errors import InvalidRequest
from task.store.records import Session
from task.store.store import Store

STREAM = {"text/event-stream": {}}


def responses_routes(service: Service) -> APIRouter:
    routes = service.routes("OpenAI", "/v1")

    @routes.post(
        "/responses", response_model=None,
        responses={200: {"model": ResponseBody, "content": STREAM}, **failures(400, 404, 409, 413, 415)},
    )  # fmt: skip
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        """Answer an input, alone or after an earlier response; with `stream` as server-sent events."""
        caller = await service.caller(request)
        received = await service.reader.read(caller, messages_of(body))
        active = await service.started(await _ask(service, caller, body, received))
        if body.stream:
            return await service.answers.opened(active, response_events(service.runner, active))
        if not await service.answers.ended(active, request):
            return Response(status_code=NOBODY)
        if broken(active):
            return failed(active)
        return json_response(response_body(spoken(active)))

    _stored_routes(routes, service)
    return routes


def _stored_routes(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "/responses/{response_id}", response_model=None, responses={200: {"model": ResponseBody}, **failures(404)}
    )
    async def get_response(response_id: str, request: Request, stream: bool = False) -> Response:
        """A response that was given before, unless it was not to be stored; never as a stream."""
        if stream:
            raise InvalidRequest("A stored response is given whole; its run's events are at /runs/{id}/events.")
        caller, store = await service.caller(request), await service.store()
        return json_response(response_body((await stored_response(store, caller.owner, response_id)).spoken()))

    @routes.get(
        "/responses/{response_id}/input_items", response_model=None,
        responses={200: {"model": ItemList}, **failures(404)},
    )  # fmt: skip
    async def list_input_items(
        response_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Order = "desc",
        after: Annotated[str | None, Query(max_length=100)] = None,
    ) -> Response:
        """What the request of a response brought, the last first unless told otherwise."""
        caller, store = await service.caller(request), await service.store()
        items = await input_items(store, await stored_response(store, caller.owner, response_id))
        return json_response(page_of_items(items, order, limit, after))

    @routes.delete(
        "/responses/{response_id}", response_model=None,
        responses={200: {"model": ResponseDeleted}, **failures(404, 409)},
    )  # fmt: skip
    async def delete_response(response_id: str, request: Request) -> Response:
        """Remove a response with its trace; what later responses go on with stays in their conversation."""
        caller, store = await service.caller(request), await service.store()
        await take_back(store, caller.owner, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})


def _options(service: Service, body: ResponseRequest, received: IncomingMessages) -> RunOptions:
    ours = Ours(model=body.model, experiment=body.experiment, permission_mode=body.permission_mode)
    given = options_of(body)
    tools = [tool.model_dump(exclude_none=True, exclude={"type"}) for tool in body.tools or ()]
    choice = body.tool_choice
    named = choice if choice is None or isinstance(choice, str) else _named(choice.name)
    options = service.options(DOOR, ours, received, service.sampled(**given), None)
    return replace(
        options, tools=tuple(tools), choice=named, previous=body.previous_response_id, metadata=body.metadata or {},
        warnings=service.warnings(body, options.model, given),
    )  # fmt: skip


def _named(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


async def _ask(service: Service, caller: ApiCaller, body: ResponseRequest, received: IncomingMessages) -> RunRequest:
    """The run that the request asks for: in a new session, after the previous response, or without a session."""
    options, store = _options(service, body, received), await service.store()
    previous = body.previous_response_id
    found = await previous_response(store, caller.owner, previous) if previous is not None else None
    if body.store is False:
        before = (await store.sessions.get(caller.owner, found.session_id)).messages[: found.end] if found else ()
        unstored = replace(received, messages=(*before, *received.messages))
        return await service.preparing.ask(caller, unstored, options, None)
    if found is None:
        return await service.preparing.in_new_session(caller, received, options)
    session = await store.sessions.get(caller.owner, found.session_id)
    run_id, sent = found.run.run_id, received.messages
    again = await decided_before(store, caller, session, run_id, sent, options)
    again = again or await given_before(store, caller, session, run_id, found.end, sent, options)
    if again is not None:
        return again
    return await service.preparing.ask(
        caller, received, options, await _session_after(store, session, found), whole=True
    )


async def _session_after(store: Store, session: Session, found: StoredResponse) -> str:
    """The session that ends with the response; where others have followed it already, a branch."""
    if found.end is None or session.length == found.end:
        return session.session_id
    return (await store.sessions.branch(session.owner, session.session_id, found.end)).session_id
