"""The chat models that local Core serves itself: one of ours in OpenAI's wire format, or an upstream's."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import ClientSession, web
from multidict import CIMultiDict

from task.conversation.messages import Message, message_from
from task.errors import ProviderError
from task.llm.base import (
    Accumulator,
    ChatModel,
    Delta,
    Finish,
    ModelOptions,
    ModelWarning,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    Waiting,
)
from task.local.core.access import parse
from task.local.core.models import UpstreamModel
from task.local.core.relay import ResponseRules, is_absolute, send
from task.local.core.responses import Refusal, json_response, openai_error
from task.local.core.storage import FileStore

logger = logging.getLogger(__name__)

# Not 429 and 503: Core reports its own limits so too, and callers of a model understand them.
_RULES = ResponseRules(swallowed=frozenset({502, 504}))
_DIAL_ONLY = frozenset({"custom_content", "custom_fields", "custom_input", "addons", "max_prompt_tokens"})
_EXTRA = frozenset({"response_format", "presence_penalty", "frequency_penalty"})
_ATTACHMENT_FIELDS = ("type", "title", "data", "url", "reference_url", "reference_type")


class CompletionStream:
    """A streamed completion of a model: chunks in OpenAI's form, ended by `[DONE]`."""

    def __init__(self, model: str) -> None:
        self._envelope = _envelope(model, "chat.completion.chunk")
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    async def start(self, request: web.Request) -> None:
        await self._response.prepare(request)
        await self.write({"role": "assistant"})

    async def write(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        await self.write_chunk(choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}])

    async def write_chunk(self, **fields: Any) -> None:
        await self._response.write(b"data: " + orjson.dumps(self._envelope | fields) + b"\n\n")

    async def write_error(self, error: dict[str, Any]) -> None:
        await self._response.write(b"data: " + orjson.dumps({"error": error}) + b"\n\n")

    async def end(self) -> web.StreamResponse:
        await self._response.write(b"data: [DONE]\n\n")
        await self._response.write_eof()
        return self._response


def block(model: str, message: dict[str, Any], finish_reason: str, usage: Usage) -> web.Response:
    """A completion as one JSON document."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    document = _envelope(model, "chat.completion") | {"choices": [choice], "usage": _usage(usage)}
    return json_response(document)


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    """Passes completions to the upstream: what only DIAL knows is removed, stored images are sent as data URLs."""

    choice: UpstreamModel
    session: ClientSession
    store: FileStore

    @property
    def name(self) -> str:
        return self.choice.name

    async def respond(self, request: web.Request, document: Mapping[str, Any]) -> web.StreamResponse:
        upstream = await plain_request(document, self.store) | {"model": self.name}
        headers = CIMultiDict({"Content-Type": "application/json", "Accept": request.headers.get("Accept", "*/*")})
        if self.choice.api_key:
            headers["Authorization"] = f"Bearer {self.choice.api_key}"
        url = f"{self.choice.base_url.rstrip('/')}/chat/completions"
        return await send(self.session, request, url, headers, orjson.dumps(upstream), _RULES)


async def plain_request(document: Mapping[str, Any], store: FileStore) -> dict[str, Any]:
    """The request without what only DIAL knows, and with the stored images as data URLs."""
    plain = _without_dial(document)
    if isinstance(messages := document.get("messages"), list):
        plain["messages"] = [await _plain(one, store) if isinstance(one, dict) else one for one in messages]
    if isinstance(tools := document.get("tools"), list):
        plain["tools"] = [_without_dial(tool) if isinstance(tool, dict) else tool for tool in tools]
    return plain


async def _plain(message: dict[str, Any], store: FileStore) -> dict[str, Any]:
    plain, content, custom = _without_dial(message), message.get("content"), message.get("custom_content")
    attached: Any = custom.get("attachments") if isinstance(custom, dict) and message.get("role") == "user" else None
    images: list[dict[str, Any]] = []
    for item in attached if isinstance(attached, list) else ():
        if not isinstance(item, dict) or not str(item.get("type")).startswith("image/"):
            continue
        url, data = item.get("url"), item.get("data")
        if isinstance(url, str) or isinstance(data, str):
            images.append({"type": "image_url", "image_url": {"url": url or f"data:{item['type']};base64,{data}"}})
    if images and not isinstance(content, list):
        content = [{"type": "text", "text": content}] if content else []
    if isinstance(content, list):
        plain["content"] = [await _plain_part(part, store) for part in [*content, *images]]
    return plain


async def _plain_part(part: Any, store: FileStore) -> Any:
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(image, dict) or not isinstance(url, str) or is_absolute(url):
        return part
    opened = await asyncio.to_thread(store.open, parse(url).url)
    if opened is None:
        raise Refusal(400, openai_error(f"There is no file {url}", "400", "invalid_request_error"))
    stored, file = opened
    with file:
        content = base64.b64encode(await asyncio.to_thread(file.read)).decode()
    return part | {"image_url": image | {"url": f"data:{stored.content_type};base64,{content}"}}


def _without_dial(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _DIAL_ONLY}


@dataclass(frozen=True, slots=True)
class ChatModelServer:
    """Answers completions from a chat model's deltas, streamed or as one block.

    With a `store`, the model gets `plain_request`s.
    """

    name: str
    model: ChatModel
    store: FileStore | None = None

    async def respond(self, request: web.Request, document: Mapping[str, Any]) -> web.StreamResponse:
        messages = messages_in(await plain_request(document, self.store) if self.store else document)
        options = ModelOptions.requested(document)
        extra = {name: value for name, value in options.extra.items() if name in _EXTRA}
        options = replace(options, tool_choice=document.get("tool_choice"), extra=extra)
        deltas = self.model.stream(messages, document.get("tools") or (), options)
        async with aclosing(deltas):  # a client that leaves stops the model
            if document.get("stream"):
                return await self._streamed(request, deltas)
            return await self._block(deltas)

    async def _streamed(self, request: web.Request, deltas: AsyncIterator[Delta]) -> web.StreamResponse:
        stream, stage, is_open = CompletionStream(self.name), -1, False
        await stream.start(request)
        try:
            async for delta in deltas:
                if is_open:  # what was waited for has arrived
                    await stream.write(_stage(stage, status="completed"))
                if is_open := isinstance(delta, Waiting):
                    stage += 1
                match delta:
                    case Waiting(text):
                        await stream.write(_stage(stage, name=text, status=None))
                    case ModelWarning(text):
                        logger.warning("%s: %s", self.name, text)
                    case Usage():
                        await stream.write_chunk(choices=[], usage=_usage(delta))
                    case Finish(reason):
                        await stream.write({}, reason)
                    case _:
                        await stream.write(_rendered(delta))
        except ProviderError as error:
            await stream.write_error(_error(error))
        return await stream.end()

    async def _block(self, deltas: AsyncIterator[Delta]) -> web.Response:
        answer = Accumulator()
        try:
            async for delta in deltas:
                answer.add(delta)
        except ProviderError as error:
            raise Refusal(500, _error(error)) from None
        message = answer.message()
        fields = {"content": ""} | message.as_dict()
        if message.reasoning_content:
            fields["reasoning_content"] = message.reasoning_content
        return block(self.name, fields, answer.finish_reason or "stop", answer.usage or Usage())


def _envelope(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model, "object": kind}


def _stage(index: int, **fields: str | None) -> dict[str, Any]:
    return {"custom_content": {"stages": [{"index": index, **fields}]}}


def _rendered(delta: Delta) -> dict[str, Any]:
    match delta:
        case TextDelta():
            return {"content": delta.text}
        case ReasoningDelta():
            return {"reasoning_content": delta.text}
        case ToolCallDelta():
            given = delta.arguments
            arguments = orjson.dumps(given).decode() if isinstance(given, dict) else given
            call: dict[str, Any] = {"index": delta.index or 0, "function": {"arguments": arguments or ""}}
            if delta.id is not None:
                call |= {"id": delta.id, "type": "function"}
            if delta.name is not None:
                call["function"]["name"] = delta.name
            return {"tool_calls": [call]}
        case _:
            return {}


def _usage(usage: Usage) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}} if usage.cached_tokens else {}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **details,
    }


def _error(error: ProviderError) -> dict[str, Any]:
    shown = {"display_message": error.display_message} if error.display_message else {}
    return openai_error(str(error), error.code or "500") | shown


def messages_in(document: Mapping[str, Any]) -> list[Message]:
    """The messages of a completion's request. Raises: Refusal 400 where they are not in OpenAI's shape."""
    messages: list[Message] = []
    try:
        for wire in document.get("messages") or ():
            attachments = (wire.get("custom_content") or {}).get("attachments") or ()
            known = [{name: item[name] for name in _ATTACHMENT_FIELDS if name in item} for item in attachments]
            messages.append(message_from({**wire, "attachments": known}))
    except (AttributeError, KeyError, TypeError, ValueError):
        error = openai_error("A message is not in OpenAI's shape", "400", "invalid_request_error")
        raise Refusal(400, error) from None
    return messages
