"""The platform API: `/chat`, sessions and traces."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from task.api.edge.identity import ApiCaller
from task.api.edge.rendering import json_response
from task.api.openai.completions import NOBODY, broken, content_of, failed
from task.api.openai.documents import ResultBody, TraceBody, TraceList, failures
from task.api.openai.schemas import ChatRequest, SessionBranch, SessionChange, SessionEnd, SessionStart
from task.api.platform.documents import (
    ChatBody,
    MessageList,
    SessionBody,
    SessionEnded,
    SessionList,
    SessionRow,
    SessionStarted,
)
from task.api.service import CHAT_PROMPT, CHAT_TOKENS, Service
from task.store.records import Session, iso
from task.store.traces import TraceFilter
from task.store.wire import message_data

Limit = Annotated[int, Query(ge=1, le=1000)]
Text = Annotated[str | None, Query(max_length=200)]
Time = Annotated[float | None, Query(description="Seconds since 1970.")]


def platform_routes(service: Service) -> APIRouter:
    routes = service.routes("Platform")

    @routes.post(
        "/chat", response_model=None, responses={200: {"model": ChatBody}, **failures(400, 404, 409, 413, 415)}
    )
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation in a session, which is made where none is named."""
        caller = await service.caller(request)
        received = await service.received(request, caller, body)
        given = {"temperature": body.temperature, "top_p": body.top_p, "max_tokens": body.max_tokens or CHAT_TOKENS}
        prompt = f"{CHAT_PROMPT}\n\n{await service.product.prompt()}"
        options = service.options("chat", body, received, service.sampled(**given), prompt)
        options = replace(options, warnings=service.warnings(body, options.model, given))
        ask = (
            await service.preparing.in_new_session(caller, received, options)
            if body.session_id is None
            else await service.preparing.ask(caller, received, options, body.session_id)
        )
        active = await service.started(ask)
        if not await service.answers.ended(active, request):
            return Response(status_code=NOBODY)
        if broken(active):
            return failed(active)
        status = active.result.status if active.result is not None else None
        trace = active.trace.as_dict() if active.trace is not None else None
        ids = {"session_id": active.session_id, "run_id": active.run.run_id}
        told = {"response": content_of(active), "attachments": active.attachments, "status": status}
        return json_response({**told, **ids, "trace": trace})

    _session_routes(routes, service)
    _change_routes(routes, service)
    _trace_routes(routes, service)
    return routes


def _session_routes(routes: APIRouter, service: Service) -> None:
    @routes.post(
        "/session/start", response_model=None, responses={200: {"model": SessionStarted}, **failures(413, 415)}
    )
    async def start_session(request: Request, body: SessionStart | None = None) -> Response:
        """Begin a session."""
        caller, store = await service.caller(request), await service.store()
        session = await store.sessions.start(caller.owner, body.title if body else "")
        return json_response({"session_id": session.session_id, "started_at": iso(session.started_at)})

    @routes.post(
        "/session/end", response_model=None, responses={200: {"model": SessionEnded}, **failures(404, 413, 415)}
    )
    async def end_session(body: SessionEnd, request: Request) -> Response:
        """End a session; ending it again changes nothing."""
        caller, store = await service.caller(request), await service.store()
        session = await store.sessions.end(caller.owner, body.session_id)
        ended = iso(session.ended_at) if session.ended_at is not None else None
        count = len(session.visible_messages)
        return json_response({"session_id": session.session_id, "message_count": count, "ended_at": ended})

    @routes.get("/session/{session_id}", response_model=None, responses={200: {"model": SessionBody}, **failures(404)})
    async def get_session(session_id: str, request: Request) -> Response:
        """A session as a conversation: what the user and the assistant said."""
        return json_response((await _session(service, request, session_id))[1].as_dict())

    @routes.get(
        "/session/{session_id}/messages", response_model=None, responses={200: {"model": MessageList}, **failures(404)}
    )
    async def get_messages(session_id: str, request: Request) -> Response:
        """All messages of a session, with calls, results and attachments."""
        _, session = await _session(service, request, session_id)
        messages = [message_data(message) for message in session.messages]
        return json_response({"session_id": session_id, "messages": messages})

    @routes.get("/sessions", response_model=None, responses={200: {"model": SessionList}, **failures()})
    async def list_sessions(request: Request, limit: Limit = 50, cursor: Text = None) -> Response:
        """The caller's sessions, the last used first."""
        caller, store = await service.caller(request), await service.store()
        page = await store.sessions.list(caller.owner, limit, cursor)
        rows = [session.as_row() for session in page.items]
        return json_response({"sessions": rows, "count": len(rows), "cursor": page.cursor})


def _change_routes(routes: APIRouter, service: Service) -> None:
    @routes.patch(
        "/session/{session_id}", response_model=None, responses={200: {"model": SessionRow}, **failures(404, 413, 415)}
    )
    async def rename_session(session_id: str, body: SessionChange, request: Request) -> Response:
        """Give a session another title."""
        caller, store = await service.caller(request), await service.store()
        await store.sessions.rename(caller.owner, session_id, body.title)
        return json_response((await store.sessions.get(caller.owner, session_id)).as_row())

    @routes.delete("/session/{session_id}", status_code=204, response_model=None, responses=failures(404))
    async def delete_session(session_id: str, request: Request) -> Response:
        """Remove a session with its messages, runs and traces; a run in it is stopped."""
        caller, store = await service.caller(request), await service.store()
        await service.runner.end_in(caller.owner, session_id)
        await store.sessions.delete(caller.owner, session_id)
        return Response(status_code=204)

    @routes.post(
        "/session/{session_id}/branch", response_model=None,
        responses={200: {"model": SessionBody}, **failures(404, 409, 413, 415)},
    )  # fmt: skip
    async def branch_session(session_id: str, body: SessionBranch, request: Request) -> Response:
        """A new session that begins with the first messages of this one."""
        caller, store = await service.caller(request), await service.store()
        return json_response((await store.sessions.branch(caller.owner, session_id, body.keep)).as_dict())


async def _session(service: Service, request: Request, session_id: str) -> tuple[ApiCaller, Session]:
    caller, store = await service.caller(request), await service.store()
    return caller, await store.sessions.get(caller.owner, session_id)


def _trace_routes(routes: APIRouter, service: Service) -> None:
    @routes.get("/traces", response_model=None, responses={200: {"model": TraceList}, **failures()})
    async def list_traces(
        request: Request,
        limit: Limit = 50,
        cursor: Text = None,
        session_id: Text = None,
        run_id: Text = None,
        experiment: Text = None,
        status: Text = None,
        door: Text = None,
        since: Time = None,
        until: Time = None,
    ) -> Response:
        """The caller's traces, the newest first; an operator's key reads everybody's."""
        caller, store = await service.caller(request), await service.store()
        which = TraceFilter(session_id, run_id, experiment, status, door, since, until)
        page = await store.traces.list(_reader(caller), limit, cursor, which)
        rows: list[dict[str, Any]] = [trace.as_dict() for trace in page.items]
        return json_response({"traces": rows, "count": len(rows), "cursor": page.cursor})

    @routes.get("/traces/{trace_id}", response_model=None, responses={200: {"model": TraceBody}, **failures(404)})
    async def get_trace(trace_id: str, request: Request) -> Response:
        """What one run did."""
        caller, store = await service.caller(request), await service.store()
        return json_response((await store.traces.get(_reader(caller), trace_id)).as_dict())

    @routes.get(
        "/traces/{trace_id}/calls/{position}", response_model=None,
        responses={200: {"model": ResultBody}, **failures(404)},
    )  # fmt: skip
    async def get_result(trace_id: str, position: Annotated[int, Path(ge=0)], request: Request) -> Response:
        """The whole result of one call of a trace; calls count from 0."""
        caller, store = await service.caller(request), await service.store()
        return json_response({"result": await store.traces.result(_reader(caller), trace_id, position)})

    @routes.delete("/traces/{trace_id}", status_code=204, response_model=None, responses=failures(404))
    async def delete_trace(trace_id: str, request: Request) -> Response:
        """Remove a trace."""
        caller, store = await service.caller(request), await service.store()
        await store.traces.delete(caller.owner, trace_id)
        return Response(status_code=204)


def _reader(caller: ApiCaller) -> str | None:
    return None if caller.operator else caller.owner
