"""`/v1/responses`: OpenAI's Responses API over runs in sessions: answered, streamed, stored, and listed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import Query
from pydantic import Field

from task.api.failures import Refused, failures
from task.api.responses_input import NamedResponseTool, ResponseRequest, messages_of, options_of
from task.api.schemas import (
    AttachmentBody,
    DeletedBody,
    ItemPage,
    Order,
    ResponseModel,
    UsageBody,
    page_of_items,
)
from task.api.service import CurrentKey, CurrentService, Service, router, sse, stream_of
from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, Message, Role
from task.conversation.sources import marker_of, number_of
from task.core_client.files import file_id_of
from task.errors import Conflict, InvalidRequest, NotFound
from task.runs.events import BROKEN_OFF, RunState, state_of
from task.runs.request import RunRequest
from task.runs.runner import LiveRun, Runner
from task.store.records import Event, Run

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
async def create_response(body: ResponseRequest, key: CurrentKey, service: CurrentService) -> Any:
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
    items = [item for message in brought for item in _items(message)]
    named = {f"{_id('in', found.run)}_{place}": item for place, item in enumerate(items)}
    whole = {name: {"id": name, "status": "completed", **item} for name, item in named.items()}
    return page_of_items(whole, order, limit, after)


@routes.delete("/responses/{response_id}", response_model=DeletedBody, responses=failures(404, 409))
async def delete_response(response_id: str, service: CurrentService) -> Any:
    """Remove a response with its trace; what later responses continue stays in their conversation."""
    store = await service.store()
    found = await stored_response(store, service.owner, response_id, complete=True)
    await store.sessions.remove_run(found.run, found.start, found.end)
    return {"id": response_id, "object": "response", "deleted": True}


async def _run_request(service: Service, body: ResponseRequest) -> RunRequest:
    received, choice, previous = await service.read(messages_of(body)), body.tool_choice, body.previous_response_id
    named = isinstance(choice, NamedResponseTool)
    options = await service.run_options(
        DOOR,
        body,
        received,
        given=options_of(body),
        tools=tuple(tool.model_dump(exclude_none=True, exclude={"type"}) for tool in body.tools or ()),
        choice={"type": "function", "function": {"name": choice.name}} if named else choice,
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


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}  # by chat completions' finish reason


def response_body(state: RunState) -> dict[str, Any]:
    """The response up to its latest event."""
    options, run, text, extra = state.options, state.run, state.answer, state.options.model_options.extra
    choice = options.choice or "auto"
    wanted: Mapping[str, Any] = extra.get("response_format") or {"type": "text"}
    form = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    output = [_message(run, text, citations(state.attachments, text))] if text else []
    counted = state.usage
    return {
        "id": _id("resp", run),
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
        "output": output + [_call(call) for call in state.calls],
        "attachments": list(state.attachments),
        "usage": counted and {_renamed(name): counted[name] for name in UsageBody.model_fields},
    }


def _renamed(field: str) -> str:
    return field.replace("prompt_", "input_").replace("completion_", "output_")


def _ending(state: RunState) -> dict[str, Any]:
    broke = state.failure is not None or state.status in ("failed", "interrupted")
    error = reason = None
    if not state.over:
        status = "in_progress"
    elif state.status == "cancelled":
        status = "cancelled"
    elif state.finish_reason is None and broke:
        status = "failed"
        found = state.failure["error"] if state.failure is not None else {"message": state.run.error or BROKEN_OFF}
        shown = found.get("display_message") or found["message"]
        error = {"code": found.get("code") or "server_error", "message": shown}
    else:
        reason = _INCOMPLETE.get(state.finish_reason or "")
        status = "incomplete" if reason is not None else "completed"
    return {"status": status, "error": error, "incomplete_details": {"reason": reason} if reason else None}


async def response_events(runner: Runner, live: LiveRun) -> AsyncGenerator[bytes]:
    """The stream's events in their documented order."""
    state, run, parts = live.state, live.run, _Parts(live.run)
    started = False
    async with aclosing(runner.events(run.owner, run.run_id)) as events:
        async for event in events:
            if event.type == "attachment" and event.data["stage"] is None:
                parts.attachments.append(event.data["attachment"])
            if event.type not in ("text", "approval", "tool_calls", "finished"):
                continue
            if not started:
                started = True
                head = response_body(RunState(run, state.options, run.session_id))
                yield parts.event("created", response=head)
                yield parts.event("in_progress", response=head)
            if event.type == "text":
                yield parts.delta(event.data["text"])
            elif event.type == "approval":
                yield parts.delta(("\n\n" if parts.text else "") + event.data["text"])
            elif ended := parts.end_of_message():
                yield ended
            if event.type == "tool_calls":
                yield b"".join(map(parts.call, event.data["tool_calls"]))
            elif event.type == "finished":
                body = response_body(state)
                kind = "incomplete" if body["status"] == "cancelled" else body["status"]
                yield parts.event(kind, response=body)


class _Parts:
    """The items of one streamed response: its message, then its calls."""

    def __init__(self, run: Run) -> None:
        self.text, self.attachments = "", list[Mapping[str, str]]()
        self._run, self._numbers, self._items, self._open = run, count(), 0, False

    def event(self, kind: str, **data: Any) -> bytes:
        kind = f"response.{kind}"
        return sse({"type": kind, "sequence_number": next(self._numbers), **data}, event=kind)

    def _item(self, change: str, item: Mapping[str, Any]) -> bytes:
        return self.event(f"output_item.{change}", output_index=self._items, item=item)

    def _written(self, change: str, **data: Any) -> bytes:
        place = {"item_id": _id("msg", self._run), "output_index": self._items, "content_index": 0}
        return self.event(change, **place, **data)

    def delta(self, text: str) -> bytes:
        opening = b""
        if not self._open:
            self._open = True
            opening = self._item("added", {**_message(self._run, "", []), "status": "in_progress", "content": []})
            opening += self._written("content_part.added", part=_part("", []))
        self.text += text
        return opening + self._written("output_text.delta", delta=text, logprobs=[])

    def end_of_message(self) -> bytes:
        if not self._open:
            return b""
        noted, parts = citations(self.attachments, self.text), b""
        for number, item in enumerate(noted):
            parts += self._written("output_text.annotation.added", annotation_index=number, annotation=item)
        parts += self._written("output_text.done", text=self.text, logprobs=[])
        parts += self._written("content_part.done", part=_part(self.text, noted))
        parts += self._item("done", _message(self._run, self.text, noted))
        self._open, self._items = False, self._items + 1
        return parts

    def call(self, call: Mapping[str, Any]) -> bytes:
        item = _call(call)
        place, arguments = {"item_id": item["id"], "output_index": self._items}, item["arguments"]
        parts = self._item("added", {**item, "arguments": "", "status": "in_progress"})
        parts += self.event("function_call_arguments.delta", **place, delta=arguments)
        parts += self.event("function_call_arguments.done", **place, name=item["name"], arguments=arguments)
        parts += self._item("done", item)
        self._items += 1
        return parts


def _id(kind: str, run: Run) -> str:
    return f"{kind}_{run.run_id.removeprefix('run_')}"


def _message(run: Run, text: str, noted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    head = {"id": _id("msg", run), "type": "message", "status": "completed", "role": "assistant"}
    return {**head, "content": [_part(text, noted)]}


def _part(text: str, noted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": list(noted), "logprobs": []}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    head = {"id": f"fc_{call['id']}", "type": "function_call", "status": "completed", "call_id": call["id"]}
    return {**head, **call["function"]}


def citations(attachments: Sequence[Mapping[str, str]], text: str) -> list[dict[str, Any]]:
    """What an answer carries beside its text as the annotations that OpenAI's clients read.

    There is one for each attachment that is a file at `/v1/files` or has an address; others have no kind of their own.

    Positions are those of the source's number in the text, else of the address, else the text's end.
    """
    files, pages = list[dict[str, Any]](), list[dict[str, Any]]()
    for item in attachments:
        url = item.get("url") or item.get("reference_url") or ""
        if url.startswith("files/"):
            url = url.partition("#")[0]
            named = {"file_id": file_id_of(url), "filename": unquote(url.rpartition("/")[2]), "index": len(files)}
            files.append({"type": "file_citation", **named})
        elif url.startswith(("http://", "https://")):
            number = number_of(Attachment(**item))
            place = marker_of(number, text) if number is not None else None
            if place is None:
                before, _, after = text.partition(url)
                place = len(before), len(text) - len(after)
            where = {"start_index": place[0], "end_index": place[1]}
            pages.append({"type": "url_citation", "url": url, "title": item.get("title") or url, **where})
    return [*files, *pages]
