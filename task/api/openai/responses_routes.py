"""`/v1/responses`: OpenAI's Responses API over runs in sessions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from task.api.edge.failures import failures
from task.api.edge.identity import ApiCaller
from task.api.edge.rendering import stream_of
from task.api.openai.responses_input import NamedResponseTool, ResponseRequest, messages_of, options_of
from task.api.openai.responses_output import response_body, response_events
from task.api.openai.responses_schemas import ItemList, ResponseBody, ResponseDeleted, ResponseEvent
from task.api.openai.responses_stored import (
    DOOR,
    Order,
    delete_stored,
    input_items,
    page_of_items,
    previous_response,
    stored_response,
)
from task.api.service import CurrentCaller, CurrentKey, CurrentService, CurrentStore, Service, router
from task.errors import InvalidRequest
from task.runs.request import RunRequest

routes = router("OpenAI", "/v1")


@routes.post(
    "/responses",
    response_model=ResponseBody,
    responses={**stream_of(ResponseEvent), **failures(404, 409, 413, 415)},
)
async def create_response(
    body: ResponseRequest, key: CurrentKey, service: CurrentService, caller: CurrentCaller
) -> Any:
    """Answer an input, alone or after an earlier response; with `stream` as server-sent events."""
    async with service.runner.once(caller.owner, key) as run:
        if run is None:
            run = await service.runner.start(await _run_request(service, caller, body), key)
    live = await service.runner.follow(caller.owner, run.run_id)
    if body.stream:
        return await service.answers.stream(live, response_events(service.runner, live))
    await service.answers.wait(live)
    return response_body(live.state)


@routes.get("/responses/{response_id}", response_model=ResponseBody, responses=failures(404))
async def get_response(response_id: str, caller: CurrentCaller, store: CurrentStore, stream: bool = False) -> Any:
    """An earlier response, unless it was not to be stored; never as a stream."""
    if stream:
        raise InvalidRequest("A stored response is given whole; its run's events are at /runs/{id}/events.")
    return response_body(await stored_response(await store.get(), caller.owner, response_id))


@routes.get("/responses/{response_id}/input_items", response_model=ItemList, responses=failures(404))
async def list_input_items(
    response_id: str,
    caller: CurrentCaller,
    store: CurrentStore,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Order = "desc",
    after: Annotated[str | None, Query(max_length=100)] = None,
) -> Any:
    """The input of a response, the last item first unless `order` is `asc`."""
    opened = await store.get()
    items = await input_items(opened, await stored_response(opened, caller.owner, response_id))
    return page_of_items(items, order, limit, after)


@routes.delete("/responses/{response_id}", response_model=ResponseDeleted, responses=failures(404, 409))
async def delete_response(response_id: str, caller: CurrentCaller, store: CurrentStore) -> Any:
    """Remove a response with its trace; what later responses continue stays in their conversation."""
    await delete_stored(await store.get(), caller.owner, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def _run_request(service: Service, caller: ApiCaller, body: ResponseRequest) -> RunRequest:
    received = await service.reader.read(caller, messages_of(body))
    choice, sent = body.tool_choice, received.messages
    options = await service.options(
        DOOR,
        body,
        options_of(body),
        received.prompt,
        tools=tuple(tool.model_dump(exclude_none=True, exclude={"type"}) for tool in body.tools or ()),
        choice={"type": "function", "function": {"name": choice.name}}
        if isinstance(choice, NamedResponseTool)
        else choice,
        previous=body.previous_response_id,
        metadata=body.metadata or {},
    )
    store = await service.product.store.get()
    previous = body.previous_response_id
    found = await previous_response(store, caller.owner, previous) if previous is not None else None
    session = await store.sessions.get(caller.owner, found.run.session_id or "") if found is not None else None
    if body.store is False:
        before = session.messages[: found.end] if session is not None and found is not None else ()
        return await service.preparing.prepare(caller, (*before, *sent), options, None)
    if found is None or session is None:
        return await service.preparing.in_session(caller, sent, options)
    return await service.preparing.after_run(caller, found, session, sent, options)
