"""Models behind a Dapr sidecar: each is a component of its Conversation API, which answers as a whole."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from cachetools import TTLCache
from dapr.conf.helpers import GrpcEndpoint
from dapr.proto import api_v1
from dapr.proto.runtime.v1.dapr_pb2_grpc import DaprStub
from google.protobuf.empty_pb2 import Empty

from task.conversation.messages import Message
from task.errors import ProviderError, SettingsError
from task.llm.base import Delta, ModelOptions, ToolSchema
from task.llm.dapr_request import answer_deltas, conversation_request
from task.llm.failures import (
    CONNECTION_FAILED,
    CONTEXT_LENGTH,
    INTERRUPTED,
    TIMEOUT,
    stream_failure,
    unsendable,
)
from task.llm.text_calls import with_text_calls
from task.llm.transport import READ_SECONDS, RETRIES, Retries
from task.telemetry.operations import trace_headers

DAPR = "The Dapr sidecar"
OLDEST: tuple[int, int] = (1, 16)  # of the runtimes that have tools in their Conversation API
COMPONENT = "AGENT_DAPR__COMPONENT"
# The components pass a provider's status on in the text only, each with the words of its client.
_STATUS = re.compile(r"(?:[:,]|status code|[Ee]rror|HTTP) ([45]\d\d)\b")
_UNREACHED = re.compile(r"failed to connect|DNS resolution|errors resolving|connection attempt")
_LOST = re.compile(r"network error|connection (reset|refused)|broken pipe|\bEOF\b|no such host")
_SLOW = re.compile(r"request timeout|deadline exceeded")
_TOO_LARGE = re.compile(r"larger than max")
KEPT_SECONDS = 300
ASKING_SECONDS = 10.0
_KIND = "conversation."
_KEY = "dapr-api-token"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),  # the sidecar's own limit is enough
    ("grpc.use_local_subchannel_pool", 1),
    # A sidecar that is back is found at once; a host that does not answer is given up after two seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.min_reconnect_backoff_ms", 2000),
)


def target_of(address: str) -> tuple[str, bool]:
    """What gRPC connects to for `address`, as `DAPR_GRPC_ENDPOINT` has it, and whether with TLS.

    Raises:
        SettingsError: nothing.
    """
    try:
        endpoint = GrpcEndpoint(address)
    except ValueError as error:
        raise SettingsError(f"DAPR_GRPC_ENDPOINT is not an address such as 127.0.0.1:50001: {error}.") from error
    target = endpoint.endpoint
    if endpoint.scheme == "dns" and ":" in (host := endpoint.hostname.strip("[]")):  # the helper loses short brackets
        target = f"dns:[{host}]:{endpoint.port}"
    return target, endpoint.tls


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a sidecar reports of itself: its version, and its components by name, each with its kind."""

    version: str
    components: Mapping[str, str]

    def kind(self, component: str, place: str) -> str:
        """The component's kind, such as `conversation.openai`, at the sidecar that is at `place`.

        Raises:
            ProviderError: there is no such component, or the sidecar is too old.
        """
        number = re.match(r"v?(\d+)\.(\d+)", self.version)  # a build of one's own may have none
        if number and (int(number[1]), int(number[2])) < OLDEST:
            raise too_old(place)
        if component not in self.components:
            raise without_component(place, component, self.components)
        return self.components[component]


class DaprServer:
    """The sidecar at `address`, called with its `token`; `component` answers whatever model is asked, if it is given.

    An answer may take `seconds`. The connection is made with the first call and restored by the ones after it.
    `text_calls`: whether calls in the models' text are recognised.

    Raises:
        SettingsError: `address` is none, or the token cannot be sent.
    """

    def __init__(
        self,
        address: str,
        token: str = "",
        *,
        component: str = "",
        seconds: float = READ_SECONDS,
        text_calls: bool = False,
        retries: Retries = RETRIES,
    ) -> None:
        if not (token.isascii() and token.isprintable()):
            raise SettingsError("DAPR_API_TOKEN has a character that cannot be sent. Correct it.")
        self._target, self._tls = target_of(address)
        self._token, self._component, self._seconds, self._retries = token, component, seconds, retries
        self.text_calls = text_calls
        self._kept: TTLCache[str, Sidecar] = TTLCache(1, KEPT_SECONDS)
        self._opened: grpc.aio.Channel | None = None  # opened in the running loop, by the first call

    @property
    def place(self) -> str:
        """Host and port, or the socket, as users read it."""
        return self._target.removeprefix("dns:")

    def chat_model(self, name: str) -> DaprChatModel:
        return DaprChatModel(self, name)

    async def models(self) -> list[str]:
        """The names of the components that can be asked; none where the sidecar does not answer."""
        try:
            return [self._component] if self._component else list((await self.sidecar()).components)
        except ProviderError:
            return []

    async def accepts_images(self, _model: str, _api_key: str = "") -> bool:
        """Never: Dapr's messages are text."""
        return False

    async def request_tokens(self, _model: str, _api_key: str = "") -> int | None:
        """Unknown: Dapr does not describe its models."""
        return None

    async def sidecar(self) -> Sidecar:
        """What the sidecar reports of itself.

        Raises:
            ProviderError: it cannot be asked.
        """
        found = self._kept.get("")
        if found is None:
            metadata = await self._retries.run(lambda: self._call("GetMetadata", Empty(), ASKING_SECONDS))
            items = (item for item in metadata.registered_components if item.type.startswith(_KIND))
            found = self._kept[""] = Sidecar(metadata.runtime_version, {item.name: item.type for item in items})
        return found

    async def component(self, model: str) -> str:
        """The component that answers for the model: that of the settings, else its namesake, else the only one.

        Raises:
            ProviderError: the sidecar cannot be asked, or there is no such component.
        """
        if self._component:
            return self._component
        components = (await self.sidecar()).components
        if model in components:
            return model
        if len(components) == 1:
            return next(iter(components))
        self._kept.clear()
        raise without_component(self.place, "", components)

    async def converse(self, request: api_v1.ConversationRequestAlpha2) -> api_v1.ConversationResponseAlpha2:
        """The whole answer to a request.

        Raises:
            ProviderError: with a sentence for users where the sidecar itself refuses or is away.
        """
        try:
            return await self._retries.run(lambda: self._call("ConverseAlpha2", request, self._seconds))
        except ProviderError as error:
            if "failed finding conversation component" not in error.text:
                raise
            self._kept.clear()
            raise without_component(self.place, request.name, (await self.sidecar()).components) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            await self._opened.close()

    async def _call(self, method: str, request: Any, seconds: float) -> Any:
        if self._opened is None and self._tls:
            self._opened = grpc.aio.secure_channel(self._target, grpc.ssl_channel_credentials(), _OPTIONS)
        channel = self._opened = self._opened or grpc.aio.insecure_channel(self._target, _OPTIONS)
        metadata = (*(((_KEY, self._token),) if self._token else ()), *trace_headers().items())
        try:
            return await getattr(DaprStub(channel), method)(request, timeout=seconds, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise call_failure(error.code(), error.details() or "", self.place, self._token) from error


@dataclass(frozen=True, slots=True)
class DaprChatModel:
    """One model of a sidecar."""

    server: DaprServer
    name: str

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        deltas = self._deltas(messages, tools, options)
        return with_text_calls(deltas, messages, tools, options) if self.server.text_calls else deltas

    async def _deltas(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        component = await self.server.component(self.name)
        request, warnings = conversation_request(component, messages, tools, options)
        for warning in warnings:
            yield warning
        for delta in answer_deltas(await self.server.converse(request)):
            yield delta


def without_component(place: str, name: str, components: Mapping[str, str]) -> ProviderError:
    """The error for a component that the sidecar at `place` does not have, or for one that is not named."""
    named = f"conversation component {name}" if name else "single conversation component"
    listed = f"It has {', '.join(components)}: choose one with {COMPONENT}." if components else "It has none: add one."
    return unsendable(f"{DAPR} at {place} has no {named}. {listed}")


def too_old(place: str) -> ProviderError:
    """The error for a runtime before `OLDEST`."""
    needed = ".".join(map(str, OLDEST))
    sentence = f"What answers at {place} has no conversations with tools: it must be Dapr {needed} or newer."
    return ProviderError(sentence, status_code=404, display_message=sentence)


def call_failure(code: grpc.StatusCode, text: str, place: str, token: str) -> ProviderError:
    """The error for a call to the sidecar at `place` that ended with `code`."""
    status, problem, sentence = _meaning(code, text, place)
    if status is None:
        error = ProviderError(sentence or f"{DAPR} broke off.", code=problem, text=text, display_message=sentence)
    else:
        error = stream_failure({"message": text, "status": status, "display_message": sentence}, (token,))
        error.code = problem or error.code
    error.server, error.address = DAPR, place
    return error


def _meaning(code: grpc.StatusCode, text: str, place: str) -> tuple[int | None, str | None, str | None]:
    # The HTTP status and the code that other providers would have sent, and a sentence where it is Dapr's own.
    status = grpc.StatusCode
    match code:
        case status.UNAVAILABLE if _UNREACHED.search(text):
            sentence = f"{DAPR} does not answer at {place}. Start it, or correct DAPR_GRPC_ENDPOINT or DAPR_GRPC_PORT."
            return None, CONNECTION_FAILED, sentence
        case status.UNAVAILABLE | status.CANCELLED:
            return None, INTERRUPTED, None
        case status.DEADLINE_EXCEEDED:
            return None, TIMEOUT, None
        case status.UNAUTHENTICATED:
            return 401, None, f"{DAPR} at {place} refuses the token. Set DAPR_API_TOKEN to the one it was started with."
        case status.PERMISSION_DENIED:
            return 403, None, f"{DAPR} at {place} does not allow this call."
        case status.UNIMPLEMENTED:
            return 404, None, str(too_old(place))
        case status.RESOURCE_EXHAUSTED if _TOO_LARGE.search(text):
            sentence = (
                f"The conversation is too long for the Dapr sidecar at {place}. Start a new one, or ask an operator to"
                " raise the sidecar's limit (--max-body-size)."
            )
            return 413, CONTEXT_LENGTH, sentence
        case status.RESOURCE_EXHAUSTED:
            return 429, None, None
        case status.INVALID_ARGUMENT | status.NOT_FOUND | status.FAILED_PRECONDITION | status.OUT_OF_RANGE:
            return 400, None, None
        case _ if found := _STATUS.search(text):
            return int(found[1]), None, None
        case _ if _LOST.search(text):
            return None, INTERRUPTED, None
        case _ if _SLOW.search(text):
            return None, TIMEOUT, None
        case _:
            return 500, None, None
