"""Sessions as files for people and programs: Markdown and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from task.conversation.inputs import attachment_note
from task.conversation.messages import Message, Role, ToolCall
from task.errors import NotFound
from task.store.records import Session, SessionFilter, iso, json_bytes

if TYPE_CHECKING:
    from task.store.sessions import Sessions

AT_ONCE = 100  # sessions of one page while all are exported
_SPEAKERS = {Role.USER: "You", Role.ASSISTANT: "Agent"}
_BACKTICKS = re.compile(r"`{3,}")


def disposition(title: str, ending: str) -> dict[str, str]:
    """The header that saves the body under a name made from the title."""
    name = "-".join(re.findall(r"\w+", title))[:80] or "conversation"
    names = f"filename=\"conversation.{ending}\"; filename*=UTF-8''{quote(name)}.{ending}"
    return {"Content-Disposition": f"attachment; {names}"}


def as_json(session: Session) -> dict[str, Any]:
    """The session with its messages; attachments without what they contain."""
    return {
        "session_id": session.session_id,
        "title": session.title,
        "started_at": iso(session.started_at),
        "updated_at": iso(session.updated_at),
        "messages": [_listed(message) for message in session.messages],
    }


def as_markdown(session: Session) -> str:
    """The session for people: what was asked and answered, with the tool calls folded and attachments by name."""
    results = {message.tool_call_id: message for message in session.messages if message.role is Role.TOOL}
    parts, speaker = [f"# {' '.join(session.title.split()) or 'Conversation'}"], None
    for message in session.messages:
        if message.role not in _SPEAKERS:
            continue
        if message.role is not speaker:
            parts.append(f"## {_SPEAKERS[message.role]}")
        speaker = message.role
        parts += filter(None, (_words(message), _names(message)))
        parts += (part for call in message.tool_calls for part in _folded(call, results.get(call.id)))
    return "\n\n".join(parts) + "\n"


async def as_lines(sessions: Sessions, owner: str, which: SessionFilter) -> AsyncGenerator[bytes]:
    """The owner's sessions as `as_json` has them, one in a line, the last used first."""
    cursor, more = None, True
    while more:
        page = await sessions.list(owner, AT_ONCE, cursor, which)
        for item in page.items:
            try:
                yield json_bytes(as_json(await sessions.get(owner, item.session_id))) + b"\n"
            except NotFound:
                continue  # deleted since
        cursor, more = page.cursor, page.cursor is not None


def _listed(message: Message) -> dict[str, Any]:
    stored = replace(message, memo="").as_stored()
    for attachment in stored.get("attachments", ()):
        attachment.pop("data", None)
    return stored


def _words(message: Message) -> str:
    files = message.custom_content.attachments if message.custom_content is not None else ()
    return message.text().removesuffix(attachment_note(files)).strip()


def _names(message: Message | None) -> str:
    files = message.custom_content.attachments if message is not None and message.custom_content is not None else ()
    return "\n".join(f"- Attached: {' '.join((file.title or file.url or 'file').split())}" for file in files)


def _folded(call: ToolCall, result: Message | None) -> Iterator[str]:
    yield f"<details><summary>{call.name}</summary>"
    yield _fenced(json.dumps(json.loads(call.function.arguments), ensure_ascii=False, indent=2), "json")
    if result is not None:
        yield _fenced(result.text())
    yield "</details>"
    if names := _names(result):
        yield names


def _fenced(text: str, language: str = "") -> str:
    fence = "`" * max((len(run) + 1 for run in _BACKTICKS.findall(text)), default=3)
    return f"{fence}{language}\n{text}\n{fence}"
