"""Which model local Core serves itself, how it is listed, and how an OpenAI-compatible upstream is called."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientSession, web
from multidict import CIMultiDict

from task.llm.base import DEMO_NAME, ChatModel
from task.llm.chat_request import Profile, profile_for
from task.llm.openai import OpenAIChatModel
from task.local.core.config import CoreConfig, Features, Model
from task.local.core.relay import Relay, ResponseHooks, Target
from task.local.core.responses import Refusal
from task.local.core.sharing import is_absolute
from task.local.core.storage import Store
from task.local.core.urls import canonical
from task.local.model.server import EmbeddedModel

DEMO_TITLE = "Scripted demo (not a real model)"
SMALL_TEXT = "A small model that runs on this machine: good for trying the product, not for judging answers."

_PASSED_ON = frozenset({429, 503})  # Core reports its own limits so too: callers of a model understand them
_DIAL_ONLY = frozenset({"custom_content", "custom_fields", "custom_input", "addons", "max_prompt_tokens"})


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model of an OpenAI-compatible server at `base_url` (which ends in `/v1` or the like), listed as `name`.

    Without `profile` the address and the name determine it.
    """

    base_url: str
    name: str
    api_key: str | None = None
    profile: Profile | None = None

    @property
    def writes_calls(self) -> bool:
        """Whether calls must be looked for in its text."""
        return (self.profile or profile_for(self.name, self.base_url)).text_calls

    def connect(self, session: ClientSession) -> ChatModel:
        return OpenAIChatModel(session, self.base_url, self.api_key or "", self.name, self.profile)


@dataclass(frozen=True, slots=True)
class ScriptedDemo:
    """The demo that answers from a file and says so; listed under its own name only."""

    path: Path
    name: str = DEMO_NAME


@dataclass(frozen=True, slots=True)
class ConnectedModel:
    """A model of a server with an API of its own, listed as `title`; `connect` makes the API's client, which `close`
    closes. `context` is in tokens."""

    name: str
    title: str
    connect: Callable[[ClientSession], ChatModel]
    context: int | None = None
    tools: bool = True
    vision: bool = False
    close: Callable[[], Awaitable[None]] | None = None


ModelChoice = UpstreamModel | ScriptedDemo | EmbeddedModel | ConnectedModel


def with_choice(config: CoreConfig, choice: ModelChoice) -> CoreConfig:
    """The configuration whose chat models are replaced by the chosen one.

    No model is ever listed under another's name: an entry of the file is kept only where it describes the chosen one.
    """
    others = {name: model for name, model in config.models.items() if not model.is_chat}
    return config.model_copy(update={"models": others | {choice.name: _listed(config, choice)}})


def _listed(config: CoreConfig, choice: ModelChoice) -> Model:
    features = Features(tools_supported=True, parallel_tool_calls_supported=True)
    if isinstance(choice, ScriptedDemo):
        return Model(name=choice.name, display_name=DEMO_TITLE, features=features)
    if isinstance(choice, EmbeddedModel):
        limits = {"max_total_tokens": choice.context, "max_completion_tokens": choice.answer_tokens}
        return Model(
            name=choice.name, display_name=choice.title, description=SMALL_TEXT, features=features, limits=limits
        )
    if isinstance(choice, ConnectedModel):
        tokens = choice.context
        limits = {"max_total_tokens": tokens, "max_completion_tokens": tokens // 4} if tokens else None
        return Model(
            name=choice.name,
            display_name=choice.title,
            features=Features(tools_supported=choice.tools, parallel_tool_calls_supported=choice.tools),
            limits=limits,
            input_attachment_types=["image/*"] if choice.vision else [],
        )
    if described := described_by(config, choice.name):
        return described
    return Model(name=choice.name, display_name=choice.name, features=features)


def described_by(config: CoreConfig, name: str) -> Model | None:
    """The model's entry in the configuration, without the addresses that are not used."""
    described = config.models.get(name)
    return described and described.model_copy(update={"endpoint": None, "upstreams": [], "override_name": None})


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    """Passes completions to the upstream: what only DIAL knows is removed, stored images are sent as data URLs."""

    choice: UpstreamModel
    relay: Relay
    store: Store

    @property
    def name(self) -> str:
        return self.choice.name

    async def respond(
        self, request: web.Request, document: Mapping[str, Any], hooks: ResponseHooks
    ) -> web.StreamResponse:
        body = orjson.dumps(await self._translated(document))
        headers = CIMultiDict({"Content-Type": "application/json", "Accept": request.headers.get("Accept", "*/*")})
        if self.choice.api_key:
            headers["Authorization"] = f"Bearer {self.choice.api_key}"
        url = f"{self.choice.base_url.rstrip('/')}/chat/completions"
        own = replace(hooks, is_swallowed=lambda status: status not in _PASSED_ON and hooks.is_swallowed(status))
        return await self.relay.send(request, [Target(url, headers)], body, own)

    async def _translated(self, document: Mapping[str, Any]) -> dict[str, Any]:
        upstream = _without_dial(document)
        upstream["model"] = self.name
        messages = document.get("messages")
        if isinstance(messages, list):
            upstream["messages"] = await PlainMessages(self.store).of(messages)
        tools = document.get("tools")
        if isinstance(tools, list):
            upstream["tools"] = [_without_dial(tool) if isinstance(tool, dict) else tool for tool in tools]
        return upstream


@dataclass(frozen=True, slots=True)
class PlainMessages:
    """Messages without what only DIAL knows, and with the stored images as data URLs."""

    store: Store

    async def of(self, messages: Any) -> list[Any]:
        return [await self._message(message) for message in messages]

    async def _message(self, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        plain = _without_dial(message)
        content = message.get("content")
        if isinstance(content, list):
            plain["content"] = [await self._part(part) for part in content]
        images = [
            {"type": "image_url", "image_url": {"url": await self._data_url(url)}} for url in _image_urls(message)
        ]
        if images:
            plain["content"] = [*_parts(plain.get("content")), *images]
        return plain

    async def _part(self, part: Any) -> Any:
        image = part.get("image_url") if isinstance(part, dict) else None
        if not isinstance(image, dict) or not isinstance(image.get("url"), str):
            return part
        return part | {"image_url": image | {"url": await self._data_url(image["url"])}}

    async def _data_url(self, url: str) -> str:
        if is_absolute(url):
            return url
        opened = await asyncio.to_thread(self.store.open, canonical(url))
        if opened is None:
            raise Refusal(400, {"message": f"There is no file {url}", "type": "invalid_request_error", "code": "400"})
        stored, file = opened
        with file:
            content = await asyncio.to_thread(file.read)
        return f"data:{stored.content_type};base64,{base64.b64encode(content).decode()}"


def _without_dial(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _DIAL_ONLY}


def _image_urls(message: Mapping[str, Any]) -> list[str]:
    custom = message.get("custom_content")
    attachments: Any = custom.get("attachments") if isinstance(custom, dict) else None
    if message.get("role") != "user" or not isinstance(attachments, list):
        return []
    urls = [_image_url(attachment) for attachment in attachments if isinstance(attachment, dict)]
    return [url for url in urls if url]


def _image_url(attachment: Mapping[str, Any]) -> str | None:
    kind, url, data = attachment.get("type"), attachment.get("url"), attachment.get("data")
    if not isinstance(kind, str) or not kind.startswith("image/"):
        return None
    if isinstance(url, str):
        return url
    return f"data:{kind};base64,{data}" if isinstance(data, str) else None


def _parts(content: Any) -> Sequence[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []
