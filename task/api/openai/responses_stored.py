"""Stored responses: found by their id, rendered again, continued, deleted, and their input listed."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from task.api.edge.failures import Refused
from task.api.openai.responses_output import run_id_of
from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, Message, Role
from task.errors import Conflict, NotFound
from task.runs.state import RunState, state_of
from task.store.records import Event, Run

if TYPE_CHECKING:
    from task.store.store import Store

DOOR = "responses"
Order = Literal["asc", "desc"]


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
    state = state_of(run, await _events(store, run))
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


async def _events(store: Store, run: Run) -> list[Event]:
    found: list[Event] = []
    async with aclosing(store.runs.events_after(run.owner, run.run_id)) as events:
        async for event in events:
            found.append(event)
            if not run.over:
                break
    return found


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
    return items + [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.function.arguments}
        for call in message.tool_calls
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
