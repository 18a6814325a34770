"""Sessions through the API: listed, searched, read, changed, exported as Markdown or JSON, and deleted."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from html import escape
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Query
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from task.api.failures import failures
from task.api.messages import SessionId
from task.api.schemas import (
    AttachmentBody,
    Cursor,
    Limit,
    PageBody,
    RequestModel,
    ResponseModel,
    Timestamp,
    ToolCallBody,
    is_none,
)
from task.api.service import CurrentService, router
from task.conversation.inputs import attachment_note
from task.conversation.messages import Message, Role
from task.documents.model import code
from task.errors import NotFound
from task.permissions.icerc import words
from task.store.records import Origin, Session, SessionFilter, Versions, iso, json_bytes

SessionStatus = Literal["active", "completed"]


class SessionStart(RequestModel):
    title: str = Field(default="", max_length=500)


class SessionEnd(RequestModel):
    session_id: SessionId


class SessionChange(RequestModel):
    """What changes; what is not given stays as it is."""

    title: str | None = Field(default=None, max_length=500)
    pinned: bool | None = None


class SessionsDelete(RequestModel):
    """With `families` also the sessions that branched off each other with these."""

    session_ids: list[SessionId] = Field(min_length=1, max_length=1000)
    families: bool = False


class SessionsDeleted(ResponseModel):
    deleted: int


class SessionBranch(RequestModel):
    """`keep`: how many of the session's messages the branch begins with, as `/session/{id}/messages` counts them."""

    keep: int = Field(ge=0)


class SessionStarted(ResponseModel):
    session_id: str
    started_at: Timestamp


class SessionEnded(ResponseModel):
    session_id: str
    message_count: int
    ended_at: Timestamp


class SaidBody(ResponseModel):
    role: str
    content: Any


class SessionBody(ResponseModel):
    session_id: str
    started_at: Timestamp
    ended_at: Timestamp | None = Field(default=None, exclude_if=is_none)
    status: SessionStatus
    messages: list[SaidBody] = Field(validation_alias="visible_messages")
    traces: list[str]
    title: str
    parent: str | None


class SessionRow(ResponseModel):
    session_id: str
    title: str
    status: SessionStatus
    started_at: Timestamp
    updated_at: Timestamp
    ended_at: Timestamp | None
    parent: str | None
    family: str
    origin: Origin
    pinned: bool
    snippet: str = ""


class SessionList(PageBody):
    sessions: list[SessionRow] = Field(validation_alias="items")


class MessageBody(ResponseModel):
    """`unsourced`: an answer whose tool results are not known; it counts as text from outside.

    `scrub_pii`: personal data is removed from what the model reads of it, where its provider can."""

    role: str
    content: Any = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    attachments: list[AttachmentBody] | None = None
    failed: bool = False
    unsourced: bool = False
    scrub_pii: bool = False


class MessageList(ResponseModel):
    session_id: str
    messages: list[MessageBody]
    status: SessionStatus


class VersionList(ResponseModel):
    family: str
    versions: list[Versions]


ORIGINS: dict[str, tuple[Origin, ...]] = {"own": ("page", "console"), "programs": ("api",)}
StartedBy = Annotated[Literal["own", "programs"] | None, Query(description="`own`: on the web page or in the console.")]
routes = router("Platform")


@routes.post("/session/start", response_model=SessionStarted, responses=failures(413, 415))
async def start_session(service: CurrentService, body: SessionStart | None = None) -> Any:
    """Start a session."""
    return await (await service.store()).sessions.start(service.owner, body.title if body else "")


@routes.post("/session/end", response_model=SessionEnded, responses=failures(404, 413, 415))
async def end_session(body: SessionEnd, service: CurrentService) -> Any:
    """End a session: a run in it is stopped, its open questions expire. Ending it again changes nothing."""
    opened = await service.store()
    session = await opened.sessions.end(service.owner, body.session_id)
    await service.runner.end_in(service.owner, body.session_id)
    for approval in await opened.approvals.list(service.owner, session_id=body.session_id):
        await opened.approvals.expire(service.owner, approval.approval_id)
    count = len(session.visible_messages)
    return {"session_id": session.session_id, "message_count": count, "ended_at": session.ended_at}


@routes.get("/session/{session_id}", response_model=SessionBody, responses=failures(404))
async def get_session(session_id: str, service: CurrentService) -> Any:
    """A session as the conversation of user and assistant."""
    return await (await service.store()).sessions.get(service.owner, session_id)


@routes.get("/session/{session_id}/messages", response_model=MessageList, responses=failures(404))
async def get_messages(session_id: str, service: CurrentService) -> Any:
    """All messages of a session, with calls, results and attachments."""
    session = await (await service.store()).sessions.get(service.owner, session_id)
    messages = [replace(message, memo="", interim=False).as_stored() for message in session.messages]
    return {"session_id": session_id, "messages": messages, "status": session.status}


@routes.get("/sessions", response_model=SessionList, responses=failures())
async def list_sessions(
    service: CurrentService,
    limit: Limit = 50,
    cursor: Cursor = None,
    q: Annotated[str, Query(max_length=200, description="Words of titles and messages, or parts of them.")] = "",
    started_by: StartedBy = None,
    pinned: bool | None = None,
    families: Annotated[bool, Query(description="Of sessions that branched off each other the last used.")] = False,
) -> Any:
    """The caller's sessions, the last used first; those that a search finds each with a `snippet`."""
    which = SessionFilter(q, ORIGINS[started_by] if started_by else None, pinned, families)
    return await (await service.store()).sessions.list(service.owner, limit, cursor, which)


@routes.patch("/session/{session_id}", response_model=SessionRow, responses=failures(404, 413, 415))
async def change_session(session_id: str, body: SessionChange, service: CurrentService) -> Any:
    """Give a session another title, pin it, or unpin it; its family with it."""
    sessions = (await service.store()).sessions
    if body.title is not None:
        await sessions.rename(service.owner, session_id, body.title)
    if body.pinned is not None:
        await sessions.pin(service.owner, session_id, body.pinned)
    return await sessions.get(service.owner, session_id)


@routes.get("/sessions/export", response_class=Response, responses=failures())
async def export_sessions(service: CurrentService, started_by: StartedBy = None) -> StreamingResponse:
    """All sessions of the caller as JSON lines, the last used first."""
    which = SessionFilter(origins=ORIGINS[started_by] if started_by else None)
    sessions = (await service.store()).sessions

    async def lines() -> AsyncGenerator[bytes]:
        cursor = None
        while True:
            page = await sessions.list(service.owner, AT_ONCE, cursor, which)
            for item in page.items:
                with suppress(NotFound):  # deleted since
                    yield json_bytes(as_json(await sessions.get(service.owner, item.session_id))) + b"\n"
            if (cursor := page.cursor) is None:
                return

    return StreamingResponse(lines(), media_type="application/jsonl", headers=disposition("conversations", "jsonl"))


@routes.get("/session/{session_id}/export", response_class=Response, responses=failures(404))
async def export_session(
    session_id: str,
    service: CurrentService,
    form: Annotated[Literal["markdown", "json"], Query(alias="format")] = "markdown",
) -> Response:
    """A session as a file: what was asked and answered, the tool calls folded, attachments by name."""
    session = await (await service.store()).sessions.get(service.owner, session_id)
    if form == "json":
        content = json_bytes(as_json(session))
        return Response(content, media_type="application/json", headers=disposition(session.title, "json"))
    text = as_markdown(session).encode("utf-8", "replace")
    return Response(text, media_type="text/markdown; charset=utf-8", headers=disposition(session.title, "md"))


@routes.post("/sessions/delete", response_model=SessionsDeleted, responses=failures(413, 415))
async def delete_sessions(body: SessionsDelete, service: CurrentService) -> Any:
    """Remove several sessions as `DELETE` does; ids that are not the caller's count for nothing."""
    opened = await service.store()
    for session_id in await opened.sessions.answering(service.owner, body.session_ids, body.families):
        await service.runner.end_in(service.owner, session_id)
    return {"deleted": await opened.sessions.delete_all(service.owner, body.session_ids, body.families)}


@routes.delete("/session/{session_id}", status_code=204, response_class=Response, responses=failures(404))
async def delete_session(session_id: str, service: CurrentService) -> None:
    """Remove a session with its messages, runs and traces; a run in it is stopped."""
    await service.runner.end_in(service.owner, session_id)
    await (await service.store()).sessions.delete(service.owner, session_id)


@routes.post("/session/{session_id}/branch", response_model=SessionBody, responses=failures(404, 409, 413, 415))
async def branch_session(session_id: str, body: SessionBranch, service: CurrentService) -> Any:
    """A new session that begins with the first messages of this one."""
    return await (await service.store()).sessions.branch(service.owner, session_id, body.keep)


@routes.get("/session/{session_id}/versions", response_model=VersionList, responses=failures(404))
async def list_versions(session_id: str, service: CurrentService) -> Any:
    """Where branches of the same conversation (`family`) have other messages than this session."""
    family, versions = await (await service.store()).sessions.versions(service.owner, session_id)
    return {"family": family, "versions": versions}


AT_ONCE = 100  # sessions of one page while all are exported
_SPEAKERS = {Role.USER: "You", Role.ASSISTANT: "Agent"}


def disposition(title: str, ending: str) -> dict[str, str]:
    """The header that saves the body under a name made from the title."""
    name = "-".join(re.findall(r"\w+", title))[:80] or "conversation"
    names = f"filename=\"conversation.{ending}\"; filename*=UTF-8''{quote(name)}.{ending}"
    return {"Content-Disposition": f"attachment; {names}"}


def as_json(session: Session) -> dict[str, Any]:
    """The session with its messages; attachments without what they contain."""
    messages: list[dict[str, object]] = []
    for message in session.messages:
        files = tuple(replace(file, data=None) for file in message.attachments)
        messages.append(replace(message, memo="", interim=False, attachments=files).as_stored())
    return {
        "session_id": session.session_id,
        "title": session.title,
        "started_at": iso(session.started_at),
        "updated_at": iso(session.updated_at),
        "messages": messages,
    }


def as_markdown(session: Session) -> str:
    """The session to read: what was asked and answered, with the tool calls folded and attachments by name."""
    results = {message.tool_call_id: message for message in session.messages if message.role is Role.TOOL}
    parts, speaker = [f"# {' '.join(session.title.split()) or 'Conversation'}"], None
    for message in session.messages:
        if message.role not in _SPEAKERS:
            continue
        if message.role is not speaker:
            parts.append(f"## {_SPEAKERS[message.role]}")
        speaker = message.role
        parts += [message.text().removesuffix(attachment_note(message.attachments)).strip(), _attached(message)]
        for call in message.tool_calls:
            arguments = json.dumps(call.arguments(), ensure_ascii=False, indent=2)
            result = results.get(call.id)
            shown, files = (code(result.text()).text, _attached(result)) if result is not None else ("", "")
            head = f"<details><summary>{escape(call.name)}</summary>"
            parts += [head, code(arguments, "json").text, shown, "</details>", files]
    return "\n\n".join(filter(None, parts)) + "\n"


def _attached(message: Message) -> str:
    names = (file.title or file.url or "file" for file in message.attachments)
    return "\n".join(f"- Attached: {words(name)}" for name in names)
