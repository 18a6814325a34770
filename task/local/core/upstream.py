"""Completions of an OpenAI-compatible upstream: DIAL's messages in OpenAI's form, the response as it arrives."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from aiohttp import web
from multidict import CIMultiDict

from task.local.core.models import UpstreamModel
from task.local.core.relay import Relay, ResponseHooks
from task.local.core.responses import Refusal
from task.local.core.sharing import is_absolute
from task.local.core.storage import FileStore
from task.local.core.urls import canonical

_PASSED_ON = frozenset({429, 503})  # Core reports its own limits so too: callers of a model understand them
_DIAL_ONLY = frozenset({"custom_content", "custom_fields", "custom_input", "addons", "max_prompt_tokens"})


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    """Passes completions to the upstream: what only DIAL knows is removed, stored images are sent as data URLs."""

    choice: UpstreamModel
    relay: Relay
    store: FileStore

    @property
    def name(self) -> str:
        return self.choice.name

    async def respond(
        self, request: web.Request, document: Mapping[str, Any], hooks: ResponseHooks
    ) -> web.StreamResponse:
        upstream = _without_dial(document)
        upstream["model"] = self.name
        messages, tools = document.get("messages"), document.get("tools")
        if isinstance(messages, list):
            upstream["messages"] = await PlainMessages(self.store).of(messages)
        if isinstance(tools, list):
            upstream["tools"] = [_without_dial(tool) if isinstance(tool, dict) else tool for tool in tools]
        headers = CIMultiDict({"Content-Type": "application/json", "Accept": request.headers.get("Accept", "*/*")})
        if self.choice.api_key:
            headers["Authorization"] = f"Bearer {self.choice.api_key}"
        url = f"{self.choice.base_url.rstrip('/')}/chat/completions"
        own = replace(hooks, is_swallowed=lambda status: status not in _PASSED_ON and hooks.is_swallowed(status))
        return await self.relay.send(request, url, headers, orjson.dumps(upstream), own)


@dataclass(frozen=True, slots=True)
class PlainMessages:
    """Messages without what only DIAL knows, and with the stored images as data URLs."""

    store: FileStore

    async def of(self, messages: Any) -> list[Any]:
        return [await self._message(message) for message in messages]

    async def _message(self, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        plain, content = _without_dial(message), message.get("content")
        if isinstance(content, list):
            content = plain["content"] = [await self._part(part) for part in content]
        images = [
            {"type": "image_url", "image_url": {"url": await self._data_url(url)}} for url in _image_urls(message)
        ]
        if images:
            texts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
            plain["content"] = [*texts, *images]
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
    found: list[str] = []
    for attachment in attachments:
        kind = attachment.get("type") if isinstance(attachment, dict) else None
        if not isinstance(kind, str) or not kind.startswith("image/"):
            continue
        url, data = attachment.get("url"), attachment.get("data")
        if isinstance(url, str):
            found.append(url)
        elif isinstance(data, str):
            found.append(f"data:{kind};base64,{data}")
    return found
