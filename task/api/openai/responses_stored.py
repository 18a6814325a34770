"""Stored responses: found by their id, rendered again, continued, deleted, and their input listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from task.api.edge.failures import Refused
from task.api.openai.responses_output import ResponseContent, run_id_of
from task.api.platform.run_request import RunOptions
from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, Message, Role
from task.errors import Conflict, NotFound
from task.store.records import Event, Run
from task.store.store import Store

DOOR = "responses"
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A run of the Responses API in its session. Of a run in progress only the first event is known."""

    run: Run
    session_id: str
    options: RunOptions
    events: Sequence[Event]

    @property
    def start(self) -> int:
        """How many messages the session had before this response's own."""
        return self.events[0].data["messages"]

    @property
    def end(self) -> int | None:
        """How many messages the session had after it; None while it runs, and when its process died."""
        return self.events[-1].data.get("messages") if self.events[-1].type == "finished" else None

    def content(self) -> ResponseContent:
        return ResponseContent(
            self.run, self.options, self.session_id, _text(self.events),
            [call for event in self.events if event.type == "tool_calls" for call in event.data["tool_calls"]],
            [event.data["attachment"] for event in self.events if event.type == "attachment" and _of_answer(event)],
            _last(self.events, "usage"), (_last(self.events, "error") or {}).get("error"),
            (_last(self.events, "finished") or {}).get("finish_reason"),
        )  # fmt: skip


async def stored_response(store: Store, owner: str, response_id: str) -> StoredResponse:
    """The response.

    Raises:
        NotFound: the owner has no such response: it never was, was not to be stored, or was deleted.
    """
    missing = NotFound(f"there is no response {response_id!r}")
    try:
        run = await store.runs.get(owner, run_id_of(response_id))
    except NotFound:
        raise missing from None
    events = await _events(store, run)
    if run.session_id is None or not events or events[0].data["request"]["door"] != DOOR:
        raise missing
    return StoredResponse(run, run.session_id, RunOptions.from_dict(events[0].data["request"]), events)


async def previous_response(store: Store, owner: str, response_id: str) -> StoredResponse:
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


async def input_items(store: Store, found: StoredResponse) -> dict[str, dict[str, Any]]:
    """What the request brought, in its order and by ids.

    Raises:
        NotFound: the trace that says how much that was is gone.
    """
    if found.run.trace_id is None:
        raise NotFound(f"the input of {found.run.run_id!r} is no longer known")
    asked = (await store.traces.get(found.run.owner, found.run.trace_id)).asked
    messages = (await store.sessions.get(found.run.owner, found.session_id)).messages
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


def _check_complete(found: StoredResponse, response_id: str) -> None:
    if not found.run.over:
        raise Conflict(f"the response {response_id} is not complete; wait for it, or cancel its run")


async def _events(store: Store, run: Run) -> list[Event]:
    found: list[Event] = []
    async with aclosing(store.runs.events_after(run.owner, run.run_id)) as events:
        async for event in events:
            found.append(event)
            if not run.over:
                break
    return found if found and found[0].type == "started" else []


def _text(events: Sequence[Event]) -> str:
    text = "".join(event.data["text"] for event in events if event.type == "text")
    return "\n\n".join(filter(None, (text, *(event.data["text"] for event in events if event.type == "approval"))))


def _of_answer(event: Event) -> bool:
    return event.data["stage"] is None


def _last(events: Sequence[Event], kind: str) -> Mapping[str, Any] | None:
    return next((event.data for event in reversed(events) if event.type == kind), None)


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role is Role.TOOL:
        call_id = message.tool_call_id or ""
        return [{"type": "function_call_output", "call_id": call_id, "output": message.text()}]
    if message.role is not Role.ASSISTANT:
        return [{"type": "message", "role": message.role.value, "content": _parts(message)}]
    items: list[dict[str, Any]] = []
    if message.content:
        part = {"type": "output_text", "text": message.text(), "annotations": []}
        items.append({"type": "message", "role": "assistant", "content": [part]})
    calls = [(call.id, call.name, call.function.arguments) for call in message.tool_calls]
    return items + [
        {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
        for call_id, name, arguments in calls
    ]


def _parts(message: Message) -> list[dict[str, Any]]:
    files = message.custom_content.attachments if message.custom_content is not None else ()
    written = message.text().removesuffix(attachment_note(files)).rstrip()
    parts = [{"type": "input_text", "text": written}] if written else []
    return [*parts, *_pictures(message), *map(_file, files)]


def _pictures(message: Message) -> list[dict[str, Any]]:
    content = message.content if isinstance(message.content, list) else []
    shown = [part["image_url"] for part in content if part["type"] == "image_url"]
    return [{"type": "input_image", "image_url": item["url"], "detail": item.get("detail") or "auto"} for item in shown]


def _file(file: Attachment) -> dict[str, Any]:
    return {"type": "input_file", "filename": file.title, "file_url": file.url}
