"""Sessions through the API: listed, searched, read, changed, exported as Markdown or JSON, and deleted."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Query
from starlette.responses import Response, StreamingResponse

from task.api.edge.failures import failures
from task.api.edge.schemas import Cursor, Limit
from task.api.platform import schemas as bodies
from task.api.service import CurrentCaller, CurrentService, CurrentStore, router
from task.conversation.inputs import attachment_note
from task.conversation.messages import Message, Role, ToolCall
from task.errors import NotFound
from task.store.records import Origin, Session, SessionFilter, iso, json_bytes

if TYPE_CHECKING:
    from task.store.sessions import Sessions

ORIGINS: dict[str, tuple[Origin, ...]] = {"own": ("page", "console"), "programs": ("api",)}
StartedBy = Annotated[Literal["own", "programs"] | None, Query(description="`own`: on the web page or in the console.")]

routes = router("Platform")


@routes.post("/session/start", response_model=bodies.SessionStarted, responses=failures(413, 415))
async def start_session(caller: CurrentCaller, store: CurrentStore, body: bodies.SessionStart | None = None) -> Any:
    """Start a session."""
    return await (await store.get()).sessions.start(caller.owner, body.title if body else "")


@routes.post("/session/end", response_model=bodies.SessionEnded, responses=failures(404, 413, 415))
async def end_session(
    body: bodies.SessionEnd, service: CurrentService, caller: CurrentCaller, store: CurrentStore
) -> Any:
    """End a session: a run in it is stopped, its open questions expire. Ending it again changes nothing."""
    opened = await store.get()
    session = await opened.sessions.end(caller.owner, body.session_id)
    await service.runner.end_in(caller.owner, body.session_id)
    for approval in await opened.approvals.list(caller.owner, session_id=body.session_id):
        await opened.approvals.expire(caller.owner, approval.approval_id)
    return {
        "session_id": session.session_id,
        "message_count": len(session.visible_messages),
        "ended_at": session.ended_at,
    }


@routes.get("/session/{session_id}", response_model=bodies.SessionBody, responses=failures(404))
async def get_session(session_id: str, caller: CurrentCaller, store: CurrentStore) -> Any:
    """A session as the conversation of user and assistant."""
    return await (await store.get()).sessions.get(caller.owner, session_id)


@routes.get("/session/{session_id}/messages", response_model=bodies.MessageList, responses=failures(404))
async def get_messages(session_id: str, caller: CurrentCaller, store: CurrentStore) -> Any:
    """All messages of a session, with calls, results and attachments."""
    session = await (await store.get()).sessions.get(caller.owner, session_id)
    messages = [replace(message, memo="").as_stored() for message in session.messages]
    return {"session_id": session_id, "messages": messages, "status": session.status}


@routes.get("/sessions", response_model=bodies.SessionList, responses=failures())
async def list_sessions(
    caller: CurrentCaller,
    store: CurrentStore,
    limit: Limit = 50,
    cursor: Cursor = None,
    q: Annotated[str, Query(max_length=200, description="Words of titles and messages, or parts of them.")] = "",
    started_by: StartedBy = None,
    pinned: bool | None = None,
    families: Annotated[bool, Query(description="Of sessions that branched off each other the last used.")] = False,
) -> Any:
    """The caller's sessions, the last used first; those that a search finds each with a `snippet`."""
    which = SessionFilter(q, ORIGINS[started_by] if started_by else None, pinned, families)
    return await (await store.get()).sessions.list(caller.owner, limit, cursor, which)


@routes.patch("/session/{session_id}", response_model=bodies.SessionRow, responses=failures(404, 413, 415))
async def change_session(
    session_id: str, body: bodies.SessionChange, caller: CurrentCaller, store: CurrentStore
) -> Any:
    """Give a session another title, pin it, or unpin it; its family with it."""
    sessions = (await store.get()).sessions
    if body.title is not None:
        await sessions.rename(caller.owner, session_id, body.title)
    if body.pinned is not None:
        await sessions.pin(caller.owner, session_id, body.pinned)
    return await sessions.get(caller.owner, session_id)


@routes.get("/sessions/export", response_class=Response, responses=failures())
async def export_sessions(
    caller: CurrentCaller, store: CurrentStore, started_by: StartedBy = None
) -> StreamingResponse:
    """All sessions of the caller as JSON lines, the last used first."""
    which = SessionFilter(origins=ORIGINS[started_by] if started_by else None)
    lines = as_lines((await store.get()).sessions, caller.owner, which)
    return StreamingResponse(lines, media_type="application/jsonl", headers=disposition("conversations", "jsonl"))


@routes.get("/session/{session_id}/export", response_class=Response, responses=failures(404))
async def export_session(
    session_id: str,
    caller: CurrentCaller,
    store: CurrentStore,
    form: Annotated[Literal["markdown", "json"], Query(alias="format")] = "markdown",
) -> Response:
    """A session as a file: what was asked and answered, the tool calls folded, attachments by name."""
    session = await (await store.get()).sessions.get(caller.owner, session_id)
    if form == "json":
        content = json_bytes(as_json(session))
        return Response(content, media_type="application/json", headers=disposition(session.title, "json"))
    text = as_markdown(session).encode("utf-8", "replace")
    return Response(text, media_type="text/markdown; charset=utf-8", headers=disposition(session.title, "md"))


@routes.post("/sessions/delete", response_model=bodies.SessionsDeleted, responses=failures(413, 415))
async def delete_sessions(
    body: bodies.SessionsDelete, service: CurrentService, caller: CurrentCaller, store: CurrentStore
) -> Any:
    """Remove several sessions as `DELETE` does; ids that are not the caller's count for nothing."""
    opened = await store.get()
    for session_id in await opened.sessions.answering(caller.owner, body.session_ids, body.families):
        await service.runner.end_in(caller.owner, session_id)
    return {"deleted": await opened.sessions.delete_all(caller.owner, body.session_ids, body.families)}


@routes.delete("/session/{session_id}", status_code=204, response_class=Response, responses=failures(404))
async def delete_session(session_id: str, service: CurrentService, caller: CurrentCaller, store: CurrentStore) -> None:
    """Remove a session with its messages, runs and traces; a run in it is stopped."""
    await service.runner.end_in(caller.owner, session_id)
    await (await store.get()).sessions.delete(caller.owner, session_id)


@routes.post("/session/{session_id}/branch", response_model=bodies.SessionBody, responses=failures(404, 409, 413, 415))
async def branch_session(
    session_id: str, body: bodies.SessionBranch, caller: CurrentCaller, store: CurrentStore
) -> Any:
    """A new session that begins with the first messages of this one."""
    return await (await store.get()).sessions.branch(caller.owner, session_id, body.keep)


@routes.get("/session/{session_id}/versions", response_model=bodies.VersionList, responses=failures(404))
async def list_versions(session_id: str, caller: CurrentCaller, store: CurrentStore) -> Any:
    """Where branches of the same conversation (`family`) have other messages than this session."""
    family, versions = await (await store.get()).sessions.versions(caller.owner, session_id)
    return {"family": family, "versions": versions}


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
