"""What the routes share: the caller, the store, how a request becomes a run, and how a run's answer is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from task.api.edge.failures import Failure, RunFailed
from task.api.edge.identity import ApiCaller, Identity
from task.api.edge.rendering import EventStream, JsonResponse
from task.api.openai.files import FileShelf
from task.api.openai.incoming import IncomingMessages, MessageReader
from task.api.openai.schemas import AnswerRequest, ChatCompletionRequest, SystemMessage
from task.conversation.inputs import CALLER
from task.errors import InvalidRequest
from task.llm.base import REQUEST_FIELDS, ModelOptions
from task.permissions.decisions import PermissionMode
from task.product import Profile, Services
from task.runs.preparing import Preparing
from task.runs.request import RunOptions
from task.runs.runner import LiveRun, Runner
from task.store.access import StoreAccess
from task.store.records import RequestKey

AGENT = "general-purpose-agent"
TEMPERATURE, TOP_P = 0.7, 1.0
DOCUMENTED_TOKENS = 4096
KEY_HEADER, KEY_CHARS = "idempotency-key", 255


@dataclass(frozen=True, slots=True)
class Service:
    services: Services
    profile: Profile
    identity: Identity
    runner: Runner
    answers: Answers
    preparing: Preparing
    reader: MessageReader
    shelf: FileShelf
    titles: bool
    transcription: str

    async def options(
        self, door: str, body: AnswerRequest, asked: ModelOptions, *prompts: str | None, **more: Any
    ) -> RunOptions:
        """How to answer with the options that are `asked` for; the system prompt is the first of `prompts`.

        Raises:
            InvalidRequest: there is no such persona.
        """
        profile, persona, messages = self.profile, body.persona or "", body.chat_messages
        await profile.context_prompt(persona)
        model = profile.model if body.model in (None, "", AGENT) else body.model
        warnings = [*profile.without_effect(model, asked, body.unknown)]
        if len(messages) > 1 and isinstance(messages[0], SystemMessage) and messages[0].scrub_pii:
            warnings.append("scrub_pii had no effect on the system prompt")
        tokens = asked.max_tokens or 0
        if tokens > DOCUMENTED_TOKENS:
            above = f"max_tokens is {tokens}, above the documented {DOCUMENTED_TOKENS}; it was sent as it is"
            warnings.append(above)
        given = [prompt for prompt in prompts if prompt is not None]
        return RunOptions(
            door,
            model,
            given[0] if given else None,
            profile.options_for(asked, ModelOptions(temperature=TEMPERATURE, top_p=TOP_P)),
            mode=PermissionMode(body.permission_mode),
            experiment=body.experiment,
            warnings=tuple(warnings),
            persona=persona,
            **more,
        )

    async def completion_options(
        self, door: str, body: ChatCompletionRequest, received: IncomingMessages
    ) -> RunOptions:
        choice, asked = body.tool_choice, ModelOptions.requested(body.model_dump(include=set(REQUEST_FIELDS)))
        return await self.options(
            door,
            body,
            asked,
            received.prompt,
            body.system_prompt,
            tools=tuple([tool.function.model_dump(exclude_none=True) for tool in body.offered_tools]),
            choice=choice if choice is None or isinstance(choice, str) else choice.model_dump(),
        )


class ApiRoute(APIRoute):
    """Knows its caller before it reads a body, and sends only the fields that an answer has."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["response_model_exclude_unset"] = True
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_of_caller(request: Request) -> Response:
            service: Service = request.app.state.service
            request.scope[CALLER] = await service.identity.caller(request.headers)
            return await handle(request)

        return handle_of_caller


def router(tag: str, prefix: str = "") -> APIRouter:
    return APIRouter(prefix=prefix, tags=[tag], route_class=ApiRoute, default_response_class=JsonResponse)


async def _service(request: Request) -> Service:
    return request.app.state.service


async def _caller(request: Request) -> ApiCaller:
    return request.scope[CALLER]


async def _store(request: Request) -> StoreAccess:
    return request.app.state.service.services.store


async def _key(request: Request) -> RequestKey | None:
    name = request.headers.get(KEY_HEADER)
    if name is None:
        return None
    if not 0 < len(name) <= KEY_CHARS:
        raise InvalidRequest(f"An Idempotency-Key has 1 to {KEY_CHARS} characters.")
    digest = sha256(f"{request.method} {request.url.path}\n".encode())
    digest.update(await request.body())
    return RequestKey(name, digest.hexdigest())


CurrentService = Annotated[Service, Depends(_service)]
CurrentCaller = Annotated[ApiCaller, Depends(_caller)]
CurrentKey = Annotated[RequestKey | None, Depends(_key)]  # the request's `Idempotency-Key`
# Opened by the routes: a request is found malformed before the store is found unavailable.
CurrentStore = Annotated[StoreAccess, Depends(_store)]


@dataclass(frozen=True, slots=True)
class Answers:
    runner: Runner
    heartbeat: float

    async def wait(self, live: LiveRun) -> None:
        """Wait for the end of the run; the SDK's middleware cancels this when the client leaves.

        Raises:
            RunFailed: there is no answer.
        """
        async with self.runner.listening(live):
            await asyncio.shield(live.ended)
        if live.state.failed:
            raise _failed(live)

    async def stream(self, live: LiveRun, parts: AsyncGenerator[bytes]) -> Response:
        """The stream of these parts, unless the run fails before the first one.

        Raises:
            RunFailed: the run failed before it had written anything.
        """
        first = asyncio.ensure_future(anext(parts, None))
        try:
            await asyncio.wait({first}, timeout=self.heartbeat)
        except asyncio.CancelledError:  # the client has left already
            first.cancel()
            await asyncio.wait({first})
            await parts.aclose()
            raise
        if first.done() and live.state.failed and not live.state.written:
            await parts.aclose()
            await asyncio.shield(live.ended)
            raise _failed(live)
        return EventStream(parts, self.heartbeat, first)


def _failed(live: LiveRun) -> RunFailed:
    state = live.state
    assert state.failure is not None
    ids = {"X-Run-Id": live.run.run_id, "X-Trace-Id": live.run.trace_id or ""}
    return RunFailed(Failure.recorded(state.failure, state.ids, ids))
