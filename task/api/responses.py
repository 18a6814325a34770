"""`/v1/responses`: OpenAI's Responses API over runs in sessions, and the responses that are stored."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query

from task.api.failures import Refused, failures
from task.api.responses_input import NamedResponseTool, ResponseRequest, messages_of, options_of
from task.api.responses_output import response_body, response_events, run_id_of
from task.api.responses_schemas import ItemList, ResponseBody, ResponseDeleted, ResponseEvent
from task.api.schemas import Order, page_of_items
from task.api.service import CurrentKey, CurrentService, Service, router, stream_of
from task.conversation.inputs import attachment_note
from task.conversation.messages import Message, Role
from task.errors import Conflict, InvalidRequest, NotFound
from task.runs.events import RunState, state_of
from task.runs.request import RunRequest
from task.store.records import Event

if TYPE_CHECKING:
    from task.store.store import Store

DOOR = "responses"
routes = router("OpenAI", "/v1")


@routes.post(
    "/responses",
    response_model=ResponseBody,
    responses={**stream_of(ResponseEvent), **failures(404, 409, 413, 415)},
)
async def create_response(body: ResponseRequest, key: CurrentKey, service: CurrentService) -> Any:
    """Answer an input, alone or after an earlier response; with `stream` as server-sent events."""
    async with service.runner.once(service.owner, key) as run:
        if run is None:
            run = await service.runner.start(await _run_request(service, body), key)
    live = await service.runner.follow(service.owner, run.run_id)
    if body.stream:
        return await service.stream(live, response_events(service.runner, live))
    await service.wait(live)
    return response_body(live.state)


@routes.get("/responses/{response_id}", response_model=ResponseBody, responses=failures(404))
async def get_response(response_id: str, service: CurrentService, stream: bool = False) -> Any:
    """An earlier response, unless it was not to be stored; never as a stream."""
    if stream:
        raise InvalidRequest("A stored response is given whole; its run's events are at /runs/{id}/events.")
    return response_body(await stored_response(await service.store(), service.owner, response_id))


@routes.get("/responses/{response_id}/input_items", response_model=ItemList, responses=failures(404))
async def list_input_items(
    response_id: str,
    service: CurrentService,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Order = "desc",
    after: Annotated[str | None, Query(max_length=100)] = None,
) -> Any:
    """The input of a response, the last item first unless `order` is `asc`."""
    store = await service.store()
    found = await stored_response(store, service.owner, response_id)
    if found.run.trace_id is None:
        raise NotFound(f"the input of {found.run.run_id!r} is no longer known")
    # The trace knows how many of the session's messages the request brought.
    asked = (await store.traces.get(service.owner, found.run.trace_id)).asked
    messages = (await store.sessions.get(service.owner, found.run.session_id or "")).messages
    items = [item for message in messages[found.start : found.start + asked] for item in _items(message)]
    number = found.run.run_id.removeprefix("run_")
    named = {f"in_{number}_{place}": item for place, item in enumerate(items)}
    whole = {name: {"id": name, "status": "completed", **item} for name, item in named.items()}
    return page_of_items(whole, order, limit, after)


@routes.delete("/responses/{response_id}", response_model=ResponseDeleted, responses=failures(404, 409))
async def delete_response(response_id: str, service: CurrentService) -> Any:
    """Remove a response with its trace; what later responses continue stays in their conversation."""
    store = await service.store()
    found = await stored_response(store, service.owner, response_id, complete=True)
    await store.sessions.remove_run(found.run, found.start, found.end)
    return {"id": response_id, "object": "response", "deleted": True}


async def _run_request(service: Service, body: ResponseRequest) -> RunRequest:
    received, choice, previous = await service.read(messages_of(body)), body.tool_choice, body.previous_response_id
    if isinstance(choice, NamedResponseTool):
        choice = {"type": "function", "function": {"name": choice.name}}
    options = await service.run_options(
        DOOR,
        body,
        options_of(body),
        received.prompt,
        tools=tuple(tool.model_dump(exclude_none=True, exclude={"type"}) for tool in body.tools or ()),
        choice=choice,
        previous=previous,
        metadata=body.metadata or {},
    )
    store, sent, found, before = await service.store(), received.messages, None, tuple[Message, ...]()
    if previous is not None:
        try:
            found = await stored_response(store, service.owner, previous, complete=True)
        except NotFound:
            text = f"There is no response {previous!r} to continue: it was not stored, or it was deleted."
            raise Refused(404, text, code="previous_response_not_found", param="previous_response_id") from None
        session = await store.sessions.get(service.owner, found.run.session_id or "")
        if body.store is not False:
            return await service.preparing.after_run(service.caller, found, session, sent, options)
        before = session.messages[: found.end]
    if body.store is False:
        return await service.preparing.prepare(service.caller, (*before, *sent), options, None)
    return await service.preparing.in_session(service.caller, sent, options)


async def stored_response(store: Store, owner: str, response_id: str, *, complete: bool = False) -> RunState:
    """The run of the response; of one in progress only the first event is known.

    Raises:
        NotFound: the owner has no such response: it never existed, was not stored, or was deleted.
        Conflict: it has to be `complete` and is not yet.
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
    if complete and not run.over:
        raise Conflict(f"the response {response_id} is not complete; wait for it, or cancel its run")
    return state


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role is Role.TOOL:
        call_id = message.tool_call_id or ""
        return [{"type": "function_call_output", "call_id": call_id, "output": message.text()}]
    if message.role is Role.ASSISTANT:
        part = {"type": "output_text", "text": message.text(), "annotations": []}
        items = [{"type": "message", "role": "assistant", "content": [part]}] if message.content else []
        for call in message.tool_calls:
            called = {"name": call.name, "arguments": call.function.arguments}
            items.append({"type": "function_call", "call_id": call.id, **called})
        return items
    files = message.attachments
    written = message.text().removesuffix(attachment_note(files)).rstrip()
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": written}] if written else []
    for part in message.content if isinstance(message.content, list) else ():
        if part["type"] == "image_url":
            shown = part["image_url"]
            detail = shown.get("detail") or "auto"
            parts.append({"type": "input_image", "image_url": shown["url"], "detail": detail})
    parts += [{"type": "input_file", "filename": file.title, "file_url": file.url} for file in files]
    return [{"type": "message", "role": message.role.value, "content": parts}]
