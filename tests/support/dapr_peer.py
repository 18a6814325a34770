"""daprd 1.18 as a process of its own, as far as its Conversation API can be seen, with a script in a model's place.

    python -m tests.support.dapr_peer HTTP_PORT GRPC_PORT [CERTIFICATE KEY]

True to the sidecar: `GetMetadata` and `ConverseAlpha2` over gRPC, with TLS where it has a certificate, and the health
path over HTTP; a token; the refusals of unknown components and tool choices; each failure of a provider as INTERNAL
with the status in its text; 4 MiB of a request; one output for each choice, the usage on every one; texts of developers
read as a user's; personal data scrubbed from marked inputs, and from the answer where the request asks; a cancelled
call ends the model's. A component with an endpoint asks it, as `conversation.openai` does.

What OpenAI refuses is refused here: results without their call, calls without a result. Tests script it over `/peer/…`;
see `tests.support.dapr`.
"""

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from aiohttp import web
from dapr.proto import api_v1
from dapr.proto.runtime.v1.dapr_pb2_grpc import DaprServicer, add_DaprServicer_to_server
from google.protobuf.json_format import MessageToDict

from tests.support.dapr_component import Failed, chat_body, choices_from

BODY_BYTES = 4 * 2**20
WAIT_SECONDS = 30
VERSION = "1.18.3"
USAGE = (20, 5)
_SCRUBBED = (
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<EMAIL_ADDRESS>"),
    (re.compile(r"\b\d{4}(?:[ -]?\d{4}){3}\b"), "<CREDIT_CARD>"),
    (re.compile(r"\+?\d(?:[ -]?\d){9,}"), "<PHONE_NUMBER>"),
)
_CHOICES = "'auto', 'none', 'required', or a specific tool name matching the tools available to be used"
Content = list[dict[str, Any]]
Context = grpc.aio.ServicerContext[Any, Any]


class Refusal(Exception):
    """An answer other than OK."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self.code, self.text = code, text


@dataclass
class Peer:
    token: str | None = None
    version: str = VERSION
    metadata: bool = True  # whether its configuration allows that API
    components: dict[str, str] = field(default_factory=lambda: {"test-model": "conversation.openai"})
    endpoints: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    answers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    prompts: list[Content] = field(default_factory=list[Content])
    stopped: list[str] = field(default_factory=list[str])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("requests", "prompts", "stopped")}

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


class Sidecar(DaprServicer):
    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def GetMetadata(self, request: Any, context: Context) -> api_v1.GetMetadataResponse:
        try:
            self._authorize(context)
            if not self.peer.metadata:
                raise Refusal(grpc.StatusCode.UNIMPLEMENTED, "requested endpoint is not available")
        except Refusal as refusal:
            await context.abort(refusal.code, refusal.text)
        components = {**self.peer.components, "statestore": "state.in-memory"}
        registered = [
            api_v1.RegisteredComponents(name=name, type=kind, version="v1") for name, kind in components.items()
        ]
        return api_v1.GetMetadataResponse(
            id="test", registered_components=registered, runtime_version=self.peer.version
        )

    async def ConverseAlpha2(
        self, request: api_v1.ConversationRequestAlpha2, context: Context
    ) -> api_v1.ConversationResponseAlpha2:
        try:
            self._authorize(context)
            if self.peer.version < "1.16":
                raise Refusal(grpc.StatusCode.UNIMPLEMENTED, "unknown method ConverseAlpha2")
            return await self._answer(request, context)
        except Refusal as refusal:
            await context.abort(refusal.code, refusal.text)
        except asyncio.CancelledError:
            self.peer.stopped.append(request.name)
            await asyncio.shield(self.peer.notify())
            raise

    def _authorize(self, context: Context) -> None:
        if self.peer.token is not None and _metadata(context).get("dapr-api-token") != self.peer.token:
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, "Unauthorized")

    async def _answer(
        self, request: api_v1.ConversationRequestAlpha2, context: Context
    ) -> api_v1.ConversationResponseAlpha2:
        if (size := request.ByteSize()) > BODY_BYTES:
            text = f"grpc: received message larger than max ({size} vs. {BODY_BYTES})"
            raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        body = MessageToDict(request, preserving_proto_field_name=True)
        self.peer.requests.append({"headers": _metadata(context), "body": body})
        await self.peer.notify()
        _check(request, self.peer.components)
        prompt = _prompt(request)
        self.peer.prompts.append(prompt)
        if request.name in self.peer.endpoints:
            return await _forwarded(request, prompt, self.peer)
        _check_prompt(request.name, prompt)
        unscripted: dict[str, Any] = {"choices": [{"text": "Hello from the peer."}]}
        answer = self.peer.answers.pop(0) if self.peer.answers else unscripted
        if "seconds" in answer:
            await asyncio.sleep(answer["seconds"])
        if "hangs" in answer:
            await asyncio.Event().wait()
        if "status" in answer:
            text = f"API returned unexpected status code: {answer['status']}: {answer['error']}"
            raise _internal(request.name, text)
        if "error" in answer:
            raise _internal(request.name, answer["error"])
        return _response(request, answer["choices"], self.peer, answer.get("usage", USAGE))


def _metadata(context: Context) -> dict[str, str]:
    return {str(name): str(value) for name, value in context.invocation_metadata() or ()}


def _internal(component: str, text: str) -> Refusal:
    return Refusal(grpc.StatusCode.INTERNAL, f"failed conversing with component {component}: {text}")


def _invalid(component: str, text: str) -> Refusal:
    params = f"invalid params%!(EXTRA string={text})"  # a slip in the sidecar's own format
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"failed conversing with component {component}: {params}")


# What the sidecar refuses, and what it makes of a request


def _check(request: api_v1.ConversationRequestAlpha2, components: Mapping[str, str]) -> None:
    if request.name not in components:
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"failed finding conversation component {request.name}")
    names = [tool.function.name for tool in request.tools]
    choice = request.tool_choice
    if choice == "required" and not names:
        raise _invalid(request.name, f"tool choice must be {_CHOICES}")
    if names and choice not in ("", "auto", "none", "required", *names):
        raise _invalid(request.name, f"tool choice selected was not found. Must be {_CHOICES}")


def _prompt(request: api_v1.ConversationRequestAlpha2) -> Content:
    """The messages as the provider gets them."""
    return [_provided(message, scrubs=item.scrub_pii) for item in request.inputs for message in item.messages]


def _provided(message: api_v1.ConversationMessage, *, scrubs: bool) -> dict[str, Any]:
    kind = str(message.WhichOneof("message_types"))
    inner = getattr(message, kind)
    texts = [_scrubbed(part.text) if scrubs else part.text for part in inner.content]
    role = {"of_developer": "user"}.get(kind, kind.removeprefix("of_"))
    provided: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    if kind == "of_tool":
        provided |= {"tool_call_id": inner.tool_id, "name": inner.name, "parts": len(texts)}
    if kind == "of_assistant" and inner.tool_calls:
        provided["tool_calls"] = [
            {"id": call.id, "type": "function",
             "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in inner.tool_calls
        ]  # fmt: skip
    return provided


def _check_prompt(component: str, prompt: Content) -> None:
    """As OpenAI does."""
    due: list[str] = []
    for message in prompt:
        if message["role"] == "tool":
            if message["tool_call_id"] not in due or not message["parts"]:
                raise _provider_400(component, "messages with role 'tool' must be a response to a preceding message")
            due.remove(message["tool_call_id"])
            continue
        if due:
            raise _provider_400(component, f"tool_call_ids did not have response messages: {', '.join(due)}")
        due = [call["id"] for call in message.get("tool_calls", ())]


def _provider_400(component: str, text: str) -> Refusal:
    return _internal(component, f"API returned unexpected status code: 400: {text}")


def _scrubbed(text: str) -> str:
    for pattern, placeholder in _SCRUBBED:
        text = pattern.sub(placeholder, text)
    return text


# Answers


async def _forwarded(
    request: api_v1.ConversationRequestAlpha2, prompt: Content, peer: Peer
) -> api_v1.ConversationResponseAlpha2:
    endpoint = peer.endpoints[request.name]
    try:
        choices = await choices_from(endpoint, chat_body(request, prompt, endpoint["model"]))
    except Failed as failure:
        raise _internal(request.name, str(failure)) from None
    return _response(request, choices, peer)


def _response(
    request: api_v1.ConversationRequestAlpha2, choices: Content, peer: Peer, usage: Sequence[int] = USAGE
) -> api_v1.ConversationResponseAlpha2:
    read, written = usage
    counts = api_v1.ConversationResultAlpha2CompletionUsage(
        prompt_tokens=read, completion_tokens=written, total_tokens=read + written
    )
    outputs = [
        api_v1.ConversationResultAlpha2(choices=[_choice(request, number, choice, peer)], model="gpt-4o", usage=counts)
        for number, choice in enumerate(choices)
    ]
    return api_v1.ConversationResponseAlpha2(
        context_id=request.context_id if request.HasField("context_id") else None, outputs=outputs
    )


def _choice(
    request: api_v1.ConversationRequestAlpha2, number: int, choice: dict[str, Any], peer: Peer
) -> api_v1.ConversationResultChoices:
    calls = [
        api_v1.ConversationToolCalls(
            id=call.get("id", f"call_{next(peer.ids):08x}") or None,
            function=api_v1.ConversationToolCallsOfFunction(name=call["name"], arguments=call["arguments"]),
        )
        for call in choice.get("calls", ())
    ]
    text = choice.get("text", "")
    message = api_v1.ConversationResultMessage(content=_scrubbed(text) if request.scrub_pii else text, tool_calls=calls)
    reason = choice.get("reason", "tool_calls" if calls else "stop")
    return api_v1.ConversationResultChoices(finish_reason=reason, index=number, message=message)


# The script and what the peer has seen


async def script(request: web.Request) -> web.Response:
    peer, body = request.app[PEER], await request.json()
    if body.get("reset"):
        vars(peer).update(vars(Peer()))
    peer.answers += body.get("answers", [])
    for name in ("components", "endpoints", "token", "version", "metadata"):
        setattr(peer, name, body.get(name, getattr(peer, name)))
    return web.json_response({})


async def state(request: web.Request) -> web.Response:
    peer, least = request.app[PEER], {name: int(value) for name, value in request.query.items()}
    async with asyncio.timeout(WAIT_SECONDS), peer.changed:
        await peer.changed.wait_for(lambda: all(len(peer.state()[name]) >= value for name, value in least.items()))
    return web.json_response(peer.state())


async def healthy(_: web.Request) -> web.Response:
    return web.Response(status=204)


PEER = web.AppKey("peer", Peer)


async def main(http_port: int, grpc_port: int, certificate: str = "", key: str = "") -> None:
    app = web.Application(client_max_size=256 * 2**20)
    app[PEER] = Peer()
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)))
    add_DaprServicer_to_server(Sidecar(app[PEER]), server)
    address = f"127.0.0.1:{grpc_port}"
    if certificate:
        pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
        server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    else:
        server.add_insecure_port(address)
    await server.start()
    app.router.add_get("/v1.0/healthz/outbound", healthy)
    app.router.add_post("/peer/script", script)
    app.router.add_get("/peer/state", state)
    runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", http_port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
