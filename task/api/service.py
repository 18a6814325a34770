"""What the routes share: the caller, the store, how a request becomes a run, and how a run's answer is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from task.api import messages as chat
from task.api.failures import Failure
from task.api.guard import HttpOptions
from task.api.identity import ApiCaller, Identity
from task.api.schemas import SCHEMA_REFERENCE, JsonResponse
from task.conversation.inputs import CALLER
from task.conversation.messages import Message
from task.errors import InvalidRequest
from task.llm.base import REQUEST_FIELDS, ModelOptions
from task.permissions.decisions import PermissionMode
from task.product import Profile, Services
from task.runs.request import RunOptions
from task.runs.runner import LiveRun, Runner
from task.runs.table import Preparing
from task.shares import ON_BEHALF_OF
from task.store.records import RequestKey, json_bytes

if TYPE_CHECKING:
    from task.api.files import FileShelf
    from task.store.store import Store

AGENT = "general-purpose-agent"
TEMPERATURE, TOP_P = 0.7, 1.0
DOCUMENTED_TOKENS = 4096
KEY_HEADER, KEY_CHARS = "idempotency-key", 255


@dataclass(frozen=True, slots=True)
class Service:
    """What a route of the HTTP door answers its caller with."""

    services: Services
    profile: Profile
    options: HttpOptions
    runner: Runner
    preparing: Preparing
    shelf: FileShelf
    caller: ApiCaller

    @property
    def owner(self) -> str:
        return self.caller.owner

    async def store(self) -> Store:
        """The opened store. Raises `StoreUnavailable`."""
        return await self.services.store.get()

    async def read(self, bodies: Sequence[chat.ChatMessage], prompt: str | None = None) -> chat.IncomingMessages:
        """The messages of a request, with this system prompt unless they bring their own. Raises `InvalidRequest`."""
        await asyncio.sleep(0)  # thousands of them were checked just now: others' streams go on in between
        return await chat.read_messages(self.shelf, self.caller, bodies, prompt)

    async def run_options(
        self,
        door: str,
        body: chat.AnswerRequest,
        sent: chat.IncomingMessages,
        given: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> RunOptions:
        """How to answer with the options in the request, which those `given` replace.

        Raises:
            InvalidRequest: there is no such persona.
        """
        profile, persona = self.profile, body.persona or ""
        await profile.context_prompt(persona)
        model = profile.model if body.model in (None, "", AGENT) else body.model
        fields = body.model_dump(include=set(REQUEST_FIELDS & type(body).model_fields.keys()))
        asked = ModelOptions.requested({**fields, **(given or {})})
        warnings = [*profile.without_effect(model, asked, body.unknown)]
        if sent.scrubs_prompt:
            warnings.append("scrub_pii had no effect on the system prompt")
        if (tokens := asked.max_tokens or 0) > DOCUMENTED_TOKENS:
            warnings.append(f"max_tokens is {tokens}, above the documented {DOCUMENTED_TOKENS}; it was sent as it is")
        return RunOptions(
            door,
            model,
            sent.prompt,
            profile.options_for(asked, ModelOptions(temperature=TEMPERATURE, top_p=TOP_P)),
            mode=PermissionMode(body.permission_mode),
            experiment=body.experiment,
            warnings=tuple(warnings),
            persona=persona,
            skills=tuple(body.skills),
            **more,
        )

    async def completion(self, door: str, body: chat.ChatCompletionRequest) -> tuple[Sequence[Message], RunOptions]:
        """What a chat completion asks, and how to answer. Raises `InvalidRequest`."""
        sent = await self.read(body.messages, body.system_prompt)
        tools = tuple([tool.function.model_dump(exclude_none=True) for tool in body.offered_tools])
        choice = body.tool_choice.model_dump() if isinstance(body.tool_choice, chat.NamedTool) else body.tool_choice
        return sent.messages, await self.run_options(door, body, sent, tools=tools, choice=choice)

    async def wait(self, live: LiveRun) -> None:
        """Wait for the end of the run; the SDK's middleware cancels this when the client leaves.

        Raises:
            Failure: there is no answer.
        """
        async with self.runner.listening(live):
            await asyncio.shield(live.ended)
        if live.state.failed:
            raise Failure.of_run(live.state)

    def stream(self, live: LiveRun, parts: AsyncGenerator[bytes]) -> Response:
        """The stream of these parts, or the failure of a run that fails before it has written anything."""

        async def begun() -> None:
            if live.state.failed and not live.state.written:
                await asyncio.shield(live.ended)
                raise Failure.of_run(live.state)

        return EventStream(parts, self.options.heartbeat_seconds, begun)


class ApiRoute(APIRoute):
    """Knows its caller before it reads a body, and sends only the fields that an answer has."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["response_model_exclude_unset"] = True
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_of_caller(request: Request) -> Response:
            identity: Identity = request.app.state.identity
            request.scope[CALLER] = caller = await identity.caller(request.headers)
            ON_BEHALF_OF.set(caller.owner)
            return await handle(request)

        return handle_of_caller


def router(tag: str, prefix: str = "") -> APIRouter:
    return APIRouter(prefix=prefix, tags=[tag], route_class=ApiRoute, default_response_class=JsonResponse)


async def _service(request: Request) -> Service:
    return request.app.state.service_of(request.scope[CALLER])


async def _key(request: Request) -> RequestKey | None:
    name = request.headers.get(KEY_HEADER)
    if name is None:
        return None
    if not 0 < len(name) <= KEY_CHARS:
        raise InvalidRequest(f"An Idempotency-Key has 1 to {KEY_CHARS} characters.")
    digest = sha256(f"{request.method} {request.url.path}\n".encode())
    digest.update(await request.body())
    return RequestKey(name, digest.hexdigest())


# The routes open the store: a request is found malformed before the store is found unavailable.
CurrentService = Annotated[Service, Depends(_service)]
CurrentKey = Annotated[RequestKey | None, Depends(_key)]  # the request's `Idempotency-Key`

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": heartbeat\n\n"


def stream_of(event: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """A stream of such events as FastAPI's `responses`; OpenAPI 3.1 cannot describe it otherwise."""
    reference = {"$ref": SCHEMA_REFERENCE.format(model=event.__name__)}
    return {200: {"content": {"text/event-stream": {"x-event": reference}}}}


def sse(value: Any, *, event: str | None = None, number: int | None = None) -> bytes:
    """One server-sent event."""
    head = (b"id: %d\n" % number if number is not None else b"") + (f"event: {event}\n".encode() if event else b"")
    return head + b"data: " + json_bytes(value) + b"\n\n"


class EventStream(Response):
    """A stream of server-sent events; the SDK's middleware cancels it when its listener leaves.

    Nothing is sent before the first part, or `heartbeat` seconds without it; `begun` may raise what is answered instead
    of a stream. After every `heartbeat` seconds without a part a comment keeps the connection alive.
    """

    media_type = "text/event-stream"

    def __init__(
        self, parts: AsyncGenerator[bytes], heartbeat: float, begun: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._parts, self._heartbeat, self._begun, self._sent = parts, heartbeat, begun, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = asyncio.ensure_future(anext(self._parts, None))
        tasks: list[asyncio.Future[Any]] = [first]
        try:
            await asyncio.wait({first}, timeout=self._heartbeat)
            if first.done() and self._begun is not None:
                await self._begun()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            tasks.append(asyncio.create_task(self._beat(send)))
            part = await first
            while part is not None:
                self._sent += 1
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await anext(self._parts, None)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._parts.aclose()

    async def _beat(self, send: Send) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self._heartbeat)
            if self._sent == before:
                await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})


class ByteStream(StreamingResponse):
    """Bytes as they arrive; the SDK's middleware cancels it when the caller leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette's own way never cancels a source that always has something ready.
        await self.stream_response(send)
