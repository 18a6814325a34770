"""The input of a stored response, as OpenAI's API lists it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from task.api.openai.responses_stored import StoredResponse
from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, Message, Role
from task.errors import NotFound
from task.store.store import Store

Order = Literal["asc", "desc"]


async def input_items(store: Store, found: StoredResponse) -> list[dict[str, Any]]:
    """What the request brought, in its order.

    Raises:
        NotFound: the trace that tells how much that was is gone.
    """
    if found.run.trace_id is None:
        raise NotFound(f"the input of {found.run.run_id!r} is no longer known")
    asked = (await store.traces.get(found.run.owner, found.run.trace_id)).asked
    messages = (await store.sessions.get(found.run.owner, found.session_id)).messages
    items = [item for message in messages[found.start : found.start + asked] for item in _items(message)]
    number = found.run.run_id.removeprefix("run_")
    return [{"id": f"in_{number}_{place}", "status": "completed", **item} for place, item in enumerate(items)]


def page_of_items(items: Sequence[dict[str, Any]], order: Order, limit: int, after: str | None) -> dict[str, Any]:
    """One page; `after` is the id of the last item of the page before.

    Raises:
        NotFound: there is no item `after`.
    """
    ordered = list(items if order == "asc" else reversed(items))
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise NotFound(f"there is no item {after!r}")
    start = ids.index(after) + 1 if after is not None else 0
    page = ordered[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < len(ordered),
    }


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role is Role.TOOL:
        call_id = message.tool_call_id or ""
        return [{"type": "function_call_output", "call_id": call_id, "output": message.text()}]
    if message.role is not Role.ASSISTANT:
        return [{"type": "message", "role": message.role.value, "content": _parts(message)}]
    said: list[dict[str, Any]] = []
    if message.content:
        part = {"type": "output_text", "text": message.text(), "annotations": []}
        said.append({"type": "message", "role": "assistant", "content": [part]})
    calls = [(call.id, call.name, call.function.arguments) for call in message.tool_calls]
    return said + [
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
