"""`/v1/responses`: OpenAI's Responses API over runs in sessions: answered, streamed, stored, and listed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Query
from pydantic import Field

from task.api import responses_items as items
from task.api.failures import failures, refused
from task.api.schemas import AttachmentBody, DeletedBody, ItemPage, Order, ResponseModel, UsageBody, page_of_items
from task.api.service import CurrentKey, CurrentService, Service, router, sse, stream_of
from task.conversation.messages import Message
from task.errors import Conflict, InvalidRequest, NotFound
from task.runs.request import RunRequest, RunState, state_of
from task.runs.runner import LiveRun, Runner
from task.store.records import Event

if TYPE_CHECKING:
    from task.store.store import Store

DOOR = "responses"


class ResponseBody(ResponseModel):
    """OpenAI's response, whose reference describes it, with our `attachments` and where to find the rest."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "failed", "cancelled", "in_progress"]
    model: str
    output: list[dict[str, Any]]
    attachments: list[AttachmentBody] = Field(description="All that the answer carries beside its text.")
    usage: dict[str, Any] | None
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    previous_response_id: str | None
    store: bool
    temperature: float | None
    top_p: float | None
    max_output_tokens: int | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, str]
    parallel_tool_calls: bool
    text: dict[str, Any]
    reasoning: dict[str, str | None]
    background: bool
    metadata: dict[str, str]
    session_id: str | None
    run_id: str
    trace_id: str


class ResponseEvent(ResponseModel):
    """One of OpenAI's events of a streamed response, whose reference describes each `type`. The first ones hold the
    response as it starts, the last one as it ended."""

    type: str
    sequence_number: int
    response: ResponseBody | None = None
    output_index: int | None = None
    item: dict[str, Any] | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: dict[str, Any] | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[None] | None = None
    annotation_index: int | None = None
    annotation: dict[str, Any] | None = None
    name: str | None = None
    arguments: str | None = None


class ItemList(ItemPage[dict[str, Any]]):
    """Items of the Responses API."""


routes = router("OpenAI", "/v1")


@routes.post(
    "/responses", response_model=ResponseBody, responses={**stream_of(ResponseEvent), **failures(404, 409, 413, 415)}
)
async def create_response(body: items.ResponseRequest, key: CurrentKey, service: CurrentService) -> Any:
    """Answer an input, alone or after an earlier response; with `stream` as server-sent events."""
    async with service.runner.once(service.owner, key) as run:
        if run is None:
            run = await service.runner.start(await _run_request(service, body), key)
    live = await service.runner.follow(service.owner, run.run_id)
    if body.stream:
        return service.stream(live, response_events(service.runner, live))
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
    trace = await store.traces.get(service.owner, found.run.trace_id)
    session = await store.sessions.get(service.owner, found.run.session_id or "")
    brought = session.messages[found.start :][: trace.asked]
    asked = enumerate(item for message in brought for item in items.items_of(message))
    named = {f"{items.item_id('in', found.run)}_{place}": item for place, item in asked}
    whole = {name: {"id": name, "status": "completed", **item} for name, item in named.items()}
    return page_of_items(whole, order, limit, after)


@routes.delete("/responses/{response_id}", response_model=DeletedBody, responses=failures(404, 409))
async def delete_response(response_id: str, service: CurrentService) -> Any:
    """Remove a response with its trace; what later responses continue stays in their conversation."""
    store = await service.store()
    found = await stored_response(store, service.owner, response_id, complete=True)
    await store.sessions.remove_run(found.run, found.start, found.end)
    return {"id": response_id, "object": "response", "deleted": True}


async def _run_request(service: Service, body: items.ResponseRequest) -> RunRequest:
    await asyncio.sleep(0)  # the check of thousands of items was long enough
    received, choice = await service.read(items.messages_of(body)), body.tool_choice
    named = isinstance(choice, items.NamedResponseTool)
    options = await service.run_options(
        DOOR,
        body,
        received,
        given=items.options_of(body),
        tools=tuple(tool.model_dump(exclude_none=True, exclude={"type"}) for tool in body.tools or ()),
        choice={"type": "function", "function": {"name": choice.name}} if named else choice,
        previous=body.previous_response_id,
        metadata=body.metadata or {},
    )
    store, sent, found, before = await service.store(), received.messages, None, tuple[Message, ...]()
    if (previous := body.previous_response_id) is not None:
        try:
            found = await stored_response(store, service.owner, previous, complete=True)
        except NotFound:
            text = f"There is no response {previous!r} to continue: it was not stored, or it was deleted."
            raise refused(404, text, code="previous_response_not_found", param="previous_response_id") from None
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
        run = await store.runs.get(owner, f"run_{response_id.removeprefix('resp_')}")
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


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}  # by chat completions' finish reason
_USAGE = {name: name.replace("prompt_", "input_").replace("completion_", "output_") for name in UsageBody.model_fields}


def response_body(state: RunState) -> dict[str, Any]:
    """The response up to its latest event."""
    options, run, text, extra = state.options, state.run, state.answer, state.options.model_options.extra
    choice = options.choice or "auto"
    wanted: Mapping[str, Any] = extra.get("response_format") or {"type": "text"}
    form = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    output = [items.message_item(run, text, items.citations(state.attachments, text))] if text else []
    counted = state.usage
    return {
        "id": items.item_id("resp", run),
        "object": "response",
        "created_at": int(run.started_at),
        "model": options.model,
        "instructions": options.prompt,
        "previous_response_id": options.previous,
        "store": run.session_id is not None,
        "temperature": options.model_options.temperature,
        "top_p": options.model_options.top_p,
        "max_output_tokens": options.model_options.max_tokens,
        "tools": [{"type": "function", "strict": None, **tool} for tool in options.tools],
        "tool_choice": choice if isinstance(choice, str) else {"type": "function", "name": choice["function"]["name"]},
        "parallel_tool_calls": extra.get("parallel_tool_calls", True),
        "text": form | ({"verbosity": extra["verbosity"]} if "verbosity" in extra else {}),
        "reasoning": {"effort": options.model_options.reasoning_effort, "summary": None},
        "background": False,
        "metadata": dict(options.metadata),
        **state.ids,
        **_ending(state),
        "output": output + [items.call_item(call) for call in state.calls],
        "attachments": list(state.attachments),
        "usage": counted and {new: counted[name] for name, new in _USAGE.items()},
    }


def _ending(state: RunState) -> dict[str, Any]:
    error = reason = None
    if not state.run.over:
        status = "in_progress"
    elif state.run.status == "cancelled":
        status = "cancelled"
    elif state.failure is not None and state.failed:
        status, found = "failed", state.failure["error"]
        shown = found.get("display_message") or found["message"]
        error = {"code": found.get("code") or "server_error", "message": shown}
    else:
        reason = _INCOMPLETE.get(state.finish_reason or "")
        status = "incomplete" if reason is not None else "completed"
    return {"status": status, "error": error, "incomplete_details": {"reason": reason} if reason else None}


async def response_events(runner: Runner, live: LiveRun) -> AsyncGenerator[bytes]:
    """The stream's events in their documented order."""
    run, seen = live.run, RunState(replace(live.run, status="running"), live.state.options)
    parts, started = _Parts(seen), False
    async with aclosing(runner.events(run.owner, run.run_id)) as events:
        async for event in events:
            if event.type in ("text", "approval", "tool_calls", "finished") and not started:
                started = True
                head = response_body(RunState(seen.run, seen.options))
                yield parts.event("created", response=head)
                yield parts.event("in_progress", response=head)
            separator = "\n\n" if event.type == "approval" and seen.written else ""
            seen.apply(event)
            match event.type:
                case "text" | "approval":
                    yield parts.delta(separator + event.data["text"])
                case "tool_calls":
                    yield parts.end_ofmessage_item() + b"".join(map(parts.call, seen.calls))
                case "finished":
                    body = response_body(live.state)
                    kind = "incomplete" if body["status"] == "cancelled" else body["status"]
                    yield parts.end_ofmessage_item() + parts.event(kind, response=body)
                case _:
                    pass


class _Parts:
    """The items of one streamed response: its message, then its calls."""

    def __init__(self, seen: RunState) -> None:
        self._seen, self._numbers, self._items, self._open = seen, count(), 0, False
        self._place = {"item_id": items.item_id("msg", seen.run), "output_index": 0, "content_index": 0}

    def event(self, kind: str, **data: Any) -> bytes:
        kind = f"response.{kind}"
        return sse({"type": kind, "sequence_number": next(self._numbers), **data}, event=kind)

    def _written(self, change: str, **data: Any) -> bytes:
        return self.event(change, **self._place, **data)

    def delta(self, text: str) -> bytes:
        opening = b""
        if not self._open:
            self._open = True
            item = {**items.message_item(self._seen.run, "", []), "status": "in_progress", "content": []}
            opening = self.event("output_item.added", output_index=0, item=item)
            opening += self._written("content_part.added", part=items.text_part("", []))
        return opening + self._written("output_text.delta", delta=text, logprobs=[])

    def end_ofmessage_item(self) -> bytes:
        if not self._open:
            return b""
        text, parts = self._seen.answer, b""
        noted = items.citations(self._seen.attachments, text)
        for number, item in enumerate(noted):
            parts += self._written("output_text.annotation.added", annotation_index=number, annotation=item)
        parts += self._written("output_text.done", text=text, logprobs=[])
        parts += self._written("content_part.done", part=items.text_part(text, noted))
        parts += self.event("output_item.done", output_index=0, item=items.message_item(self._seen.run, text, noted))
        self._open, self._items = False, 1
        return parts

    def call(self, call: Mapping[str, Any]) -> bytes:
        item, index = items.call_item(call), self._items
        place, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        parts = self.event("output_item.added", output_index=index, item=begun)
        parts += self.event("function_call_arguments.delta", **place, delta=arguments)
        parts += self.event("function_call_arguments.done", **place, name=item["name"], arguments=arguments)
        self._items += 1
        return parts + self.event("output_item.done", output_index=index, item=item)
