"""The kinds of model providers that the settings can choose, one function each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from pydantic import SecretStr

from task.conversation.messages import Message, Role
from task.errors import SettingsError
from task.llm.base import ChatModel, Delta, ModelOptions, ModelWarning, ToolSchema
from task.llm.chat_request import AZURE, DAPR, OLLAMA, PROFILES, ProviderProfile, profile_for
from task.llm.dial import DialChatModel, ModelListings
from task.llm.ollama import OllamaServer, context_for, machine_memory
from task.llm.openai import OpenAIChatModel, Recording, listed_models, transcription
from task.llm.transport import READ_SECONDS, Retries
from task.local.model.small_model import SmallModel
from task.local.model.weights import CODER
from task.settings import Settings
from task.tools.models import Caller

if TYPE_CHECKING:
    from task.llm.dapr import DaprServer


@dataclass(frozen=True, slots=True)
class Backend:
    """The models of one provider.

    `fetches_files`: its models get DIAL files by URL, where others get pictures inline. `listed`: they are those of
    DIAL Core. `facts` describe its models, None where nothing does; `dialect` is how requests to a model differ from
    OpenAI's. `models` names those that the caller with a key may choose, `transcribe` has speech as text by a
    deployment where no chat model does that, `closes` end connections of its own. `address` is where its provider
    listens, `provider` its name.
    """

    chat_model: Callable[[str, Caller], ChatModel]
    fetches_files: bool = False
    listed: bool = False
    facts: ModelListings | OllamaServer | DaprServer | None = None
    dialect: Callable[[str], ProviderProfile] = profile_for
    models: Callable[[str], Awaitable[list[str]]] | None = None
    transcribe: Callable[[str, Recording], Awaitable[str]] | None = None
    closes: tuple[Callable[[], Awaitable[object]], ...] = ()
    address: str = ""
    provider: str = ""


def _dial(settings: Settings, session: aiohttp.ClientSession, listings: ModelListings) -> Backend:
    dialect, retries = _dialect(settings), _retries(settings)
    return Backend(
        lambda name, caller: DialChatModel(
            session, settings.dial_endpoint, name, caller.api_key, caller.headers, profile=dialect, retries=retries
        ),
        fetches_files=True,
        listed=True,
        facts=listings,
        dialect=lambda name: dialect or profile_for(name),
        models=listings.chat_models,
        address=settings.dial_endpoint,
        provider="dial",
    )


def _openai(settings: Settings, session: aiohttp.ClientSession, _: ModelListings) -> Backend:
    dialect, retries = _dialect(settings), _retries(settings)
    url = settings.openai_base_url or "https://api.openai.com/v1"
    key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else ""
    return Backend(
        lambda name, _: OpenAIChatModel(session, url, key, name, profile=dialect, retries=retries),
        dialect=lambda name: dialect or profile_for(name, url),
        models=lambda _: listed_models(session, url, key),
        transcribe=lambda deployment, recording: transcription(session, url, key, deployment, recording),
        address=url,
        provider="openai",
    )


@dataclass(frozen=True, slots=True)
class SizedOllamaModel:
    """The model `name` of a server; a small one gets the profile of small models."""

    server: OllamaServer
    name: str

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        model = await self.server.model(self.name)
        chat: ChatModel = self.server.chat_model(self.name)
        parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
        if model.is_small and all(part.get("type") != "image_url" for part in parts):  # the profile is for text
            # Ollama moves all system messages to the beginning, where they would change what it has in its cache.
            bias, role = CODER.reply_bias, Role.USER
            chat = SmallModel(chat, self.name, model.context, reply_bias=bias, tail_role=role)
            if tools and not model.can("tools"):
                yield ModelWarning(f"the tools had no effect: {self.name} cannot call tools")
                tools = ()
        async with aclosing(chat.stream(messages, tools, options)) as deltas:
            async for delta in deltas:
                yield delta


def _ollama(settings: Settings, session: aiohttp.ClientSession, _: ModelListings) -> Backend:
    server = ollama_server(settings, session, settings.ollama_local)
    return Backend(
        lambda name, _: SizedOllamaModel(server, name),
        facts=server,
        dialect=lambda _: OLLAMA,
        models=lambda _: server.models(),
        address=settings.ollama_local,
        provider="ollama",
    )


def _dapr(settings: Settings, session: aiohttp.ClientSession, _: ModelListings) -> Backend:
    server = dapr_server(settings, session.timeout.sock_read)
    return Backend(
        lambda name, _: server.chat_model(name),
        facts=server,
        dialect=lambda _: DAPR,
        models=lambda _: server.models(),
        closes=(server.close,),
        address=dapr_address(settings),
        provider="dapr",
    )


def ollama_server(settings: Settings, session: aiohttp.ClientSession, url: str) -> OllamaServer:
    """The Ollama at `url`, called as the settings say; `OLLAMA_API_KEY` goes to the host of `TURBO_HOST` only."""
    ours = settings.ollama_api_key is not None and _origin(url) == _origin(settings.turbo_host)
    return OllamaServer(
        session,
        url,
        settings.ollama_api_key.get_secret_value() if ours and settings.ollama_api_key else "",
        context=settings.ollama.context_tokens or context_for(machine_memory()),
        keep_alive=settings.ollama.keep_alive,
        retries=_retries(settings),
    )


def dapr_address(settings: Settings) -> str:
    """Where the Dapr sidecar of the settings is."""
    return settings.dapr_grpc_endpoint or f"127.0.0.1:{settings.dapr_grpc_port}"


def dapr_server(settings: Settings, seconds: float | None = None) -> DaprServer:
    """The Dapr sidecar of the settings; an answer may take `seconds` where they name no other time.

    Raises:
        SettingsError: its client is not installed, or its address is none.
    """
    try:
        from task.llm.dapr import DaprServer
    except ImportError as error:
        raise SettingsError("Dapr needs its client: pip install 'dial-general-purpose-agent[dapr]'.") from error
    dialect = _dialect(settings)
    return DaprServer(
        dapr_address(settings),
        settings.dapr_api_token.get_secret_value() if settings.dapr_api_token else "",
        component=settings.dapr.component,
        seconds=settings.dapr.seconds or seconds or READ_SECONDS,
        text_calls=dialect is not None and dialect.text_calls,
        retries=_retries(settings),
    )


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _dialect(settings: Settings) -> ProviderProfile | None:
    return PROFILES[settings.profile] if settings.profile else None


def _retries(settings: Settings) -> Retries:
    return Retries(settings.llm.attempts, pause=settings.llm.retry_seconds)


@dataclass(frozen=True, slots=True)
class Provider:
    """A kind of backend that the settings can choose. `check` raises SettingsError where its client is not installed
    or its address cannot be one; `transcribes`: it can have speech as text; `of_core`: it needs a DIAL Core;
    `sidecar`: it runs beside the agent, and local Core connects to it as well. `credentials` are its key and its
    address in the settings, `name` is what the framework calls it."""

    open: Callable[[Settings, aiohttp.ClientSession, ModelListings], Backend]
    credentials: Callable[[Settings], tuple[SecretStr | None, str | None]]
    name: Callable[[Settings], str] = lambda settings: settings.backend
    transcribes: bool = False
    of_core: bool = False
    sidecar: bool = False
    check: Callable[[Settings], object] = lambda _: None


def _host_of_openai(settings: Settings) -> str:
    found = profile_for("", settings.openai_base_url).name
    return {AZURE.name: "azure_openai", "gemini": "gemini", "anthropic": "anthropic"}.get(found, "openai")


BACKENDS: Mapping[str, Provider] = {
    "dial": Provider(_dial, lambda found: (found.dial_api_key, found.dial_endpoint), transcribes=True, of_core=True),
    "openai": Provider(
        _openai, lambda found: (found.openai_api_key, found.openai_base_url), name=_host_of_openai, transcribes=True
    ),
    "ollama": Provider(_ollama, lambda found: (found.ollama_api_key, found.ollama_local)),
    "dapr": Provider(
        _dapr, lambda found: (found.dapr_api_token, found.dapr_grpc_endpoint), sidecar=True, check=dapr_server
    ),
}
