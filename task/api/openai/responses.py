"""`/v1/responses`: OpenAI's Responses API over runs in sessions, and the responses that are stored."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Query

from task.api.edge.failures import Refused, failures
from task.api.edge.identity import ApiCaller
from task.api.edge.rendering import stream_of
from task.api.openai.responses_input import NamedResponseTool, ResponseRequest, messages_of, options_of
from task.api.openai.responses_output import response_body, response_events, run_id_of
from task.api.openai.responses_schemas import ItemList, ResponseBody, ResponseDeleted, ResponseEvent
from task.api.service import CurrentCaller, CurrentKey, CurrentService, CurrentStore, Service, router
from task.conversation.inputs import attachment_note
from task.conversation.messages import Message, Role
from task.errors import Conflict, InvalidRequest, NotFound
from task.runs.request import RunRequest
from task.runs.state import RunState, state_of
from task.store.records import Event

if TYPE_CHECKING:
    from task.store.store import Store

DOOR = "responses"
Order = Literal["asc", "desc"]

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
    store = await service.services.store.get()
    previous = body.previous_response_id
    found = await previous_response(store, caller.owner, previous) if previous is not None else None
    session = await store.sessions.get(caller.owner, found.run.session_id or "") if found is not None else None
    if body.store is False:
        before = session.messages[: found.end] if session is not None and found is not None else ()
        return await service.preparing.prepare(caller, (*before, *sent), options, None)
    if found is None or session is None:
        return await service.preparing.in_session(caller, sent, options)
    return await service.preparing.after_run(caller, found, session, sent, options)


async def stored_response(store: Store, owner: str, response_id: str) -> RunState:
    """The run of the response; of one in progress only the first event is known.

    Raises:
        NotFound: the owner has no such response: it never existed, was not stored, or was deleted.
    """
    missing = NotFound(f"there is no response {response_id!r}")
    try:
        run = await store.runs.get(owner, run_id_of(response_id))
    except NotFound:
        raise missing from None
    found: list[Event] = []
    async with aclosing(store.runs.events_after(owner, run.run_id)) as events:
        async for event in events:
            found.append(event)
            if not run.over:
                break
    state = state_of(run, found)
    if state is None or run.session_id is None or state.options.door != DOOR:
        raise missing
    return state


async def previous_response(store: Store, owner: str, response_id: str) -> RunState:
    """The response that another one continues.

    Raises:
        Refused: there is none, in the words of OpenAI's API.
        Conflict: it is not complete yet.
    """
    try:
        found = await stored_response(store, owner, response_id)
    except NotFound:
        text = f"There is no response {response_id!r} to continue: it was not stored, or it was deleted."
        raise Refused(404, text, code="previous_response_not_found", param="previous_response_id") from None
    _check_complete(found, response_id)
    return found


async def delete_stored(store: Store, owner: str, response_id: str) -> None:
    """Remove the response with its trace; what later responses continue stays in their conversation.

    Raises:
        NotFound: the owner has no such response.
        Conflict: it is not complete yet.
    """
    found = await stored_response(store, owner, response_id)
    _check_complete(found, response_id)
    await store.sessions.remove_run(found.run, found.start, found.end)


async def input_items(store: Store, found: RunState) -> dict[str, dict[str, Any]]:
    """The items of the request's input by their ids, in order.

    Raises:
        NotFound: the trace that counts the input's messages is gone.
    """
    if found.run.trace_id is None:
        raise NotFound(f"the input of {found.run.run_id!r} is no longer known")
    asked = (await store.traces.get(found.run.owner, found.run.trace_id)).asked
    messages = (await store.sessions.get(found.run.owner, found.run.session_id or "")).messages
    items = [item for message in messages[found.start : found.start + asked] for item in _items(message)]
    number = found.run.run_id.removeprefix("run_")
    named = {f"in_{number}_{place}": item for place, item in enumerate(items)}
    return {name: {"id": name, "status": "completed", **item} for name, item in named.items()}


def page_of_items(items: dict[str, Any], order: Order, limit: int, after: str | None) -> dict[str, Any]:
    """One page of the items, which stand by their ids, the oldest first; `after` is the last id of the page before.

    Raises:
        NotFound: there is no item `after`.
    """
    ids = list(items if order == "asc" else reversed(items))
    if after is not None and after not in items:
        raise NotFound(f"there is no item {after!r}")
    start = ids.index(after) + 1 if after is not None else 0
    page = ids[start : start + limit]
    return {
        "object": "list",
        "data": [items[name] for name in page],
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
        "has_more": start + limit < len(ids),
    }


def _check_complete(found: RunState, response_id: str) -> None:
    if not found.run.over:
        raise Conflict(f"the response {response_id} is not complete; wait for it, or cancel its run")


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role is Role.TOOL:
        call_id = message.tool_call_id or ""
        return [{"type": "function_call_output", "call_id": call_id, "output": message.text()}]
    if message.role is not Role.ASSISTANT:
        files = message.custom_content.attachments if message.custom_content is not None else ()
        written = message.text().removesuffix(attachment_note(files)).rstrip()
        parts: list[dict[str, Any]] = [{"type": "input_text", "text": written}] if written else []
        for part in message.content if isinstance(message.content, list) else ():
            if part["type"] == "image_url":
                shown = part["image_url"]
                detail = shown.get("detail") or "auto"
                parts.append({"type": "input_image", "image_url": shown["url"], "detail": detail})
        parts += [{"type": "input_file", "filename": file.title, "file_url": file.url} for file in files]
        return [{"type": "message", "role": message.role.value, "content": parts}]
    items: list[dict[str, Any]] = []
    if message.content:
        part = {"type": "output_text", "text": message.text(), "annotations": []}
        items.append({"type": "message", "role": "assistant", "content": [part]})
    return items + [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.function.arguments}
        for call in message.tool_calls
    ]
