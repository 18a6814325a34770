"""The chat models that local Core serves itself: one of ours in OpenAI's wire format, or an upstream's."""

import asyncio
import base64
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import ClientSession, web
from multidict import CIMultiDict

from task.conversation.messages import Attachment, Message, message_from
from task.errors import ProviderError
from task.llm.base import (
    Accumulator,
    ChatModel,
    Delta,
    FileDelta,
    Finish,
    ModelOptions,
    ModelWarning,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    Waiting,
)
from task.local.core.access import PRINCIPAL, Principal, parse
from task.local.core.models import UpstreamModel
from task.local.core.relay import is_absolute, send
from task.local.core.responses import Refusal, json_response, openai_error
from task.local.core.storage import FileStore

logger = logging.getLogger(__name__)

# Not 429 and 503: Core reports its own limits so too, and callers of a model understand them.
_SWALLOWED = frozenset({502, 504})
_DIAL_ONLY = frozenset({"custom_content", "custom_fields", "custom_input", "addons", "max_prompt_tokens"})
_EXTRA = frozenset({"response_format", "presence_penalty", "frequency_penalty"})
_WRONG_SHAPE = (AttributeError, KeyError, TypeError, ValueError)
MISSHAPEN = openai_error("A message is not in OpenAI's shape", "400", "invalid_request_error")


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    """Passes completions to the upstream: what only DIAL knows is removed, stored images are sent as data URLs."""

    name: str
    choice: UpstreamModel
    session: ClientSession
    store: FileStore

    async def respond(self, request: web.Request, document: Mapping[str, Any]) -> web.StreamResponse:
        upstream = await plain_request(document, self.store, request[PRINCIPAL]) | {"model": self.name}
        headers = CIMultiDict({"Content-Type": "application/json", "Accept": request.headers.get("Accept", "*/*")})
        if self.choice.api_key:
            headers["Authorization"] = f"Bearer {self.choice.api_key}"
        url = f"{self.choice.base_url.rstrip('/')}/chat/completions"
        return await send(self.session, request, url, headers, orjson.dumps(upstream), swallowed=_SWALLOWED)


async def plain_request(document: Mapping[str, Any], store: FileStore, caller: Principal) -> dict[str, Any]:
    """The request without what only DIAL knows, and with the stored images as data URLs.

    Raises: Refusal 400 where it is not in OpenAI's shape, or an image does not exist; 403 where it is not the caller's.
    """
    plain = _without_dial(document)
    try:
        plain["messages"] = [await _plain(message, store, caller) for message in document.get("messages") or ()]
        if tools := document.get("tools"):
            plain["tools"] = [_without_dial(tool) for tool in tools]
    except _WRONG_SHAPE:
        raise Refusal(400, MISSHAPEN) from None
    return plain


async def _plain(message: dict[str, Any], store: FileStore, caller: Principal) -> dict[str, Any]:
    plain, content = _without_dial(message), message.get("content")
    parts: list[Any] = list(content or ())
    if content and isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    attached = (message.get("custom_content") or {}).get("attachments") if message.get("role") == "user" else ()
    for item in attached or ():
        if str(item.get("type")).startswith("image/") and (item.get("url") or item.get("data")):
            url = item.get("url") or f"data:{item['type']};base64,{item['data']}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
    if any(part.get("type") == "image_url" for part in parts):
        plain["content"] = [await _plain_part(part, store, caller) for part in parts]
    return plain


async def _plain_part(part: dict[str, Any], store: FileStore, caller: Principal) -> dict[str, Any]:
    image = part["image_url"] if part.get("type") == "image_url" else None  # whatever other parts carry
    if image is None or is_absolute(url := image["url"]):
        return part
    opened = await asyncio.to_thread(store.open, caller, parse(url).url)
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
        messages = messages_in(
            await plain_request(document, self.store, request[PRINCIPAL]) if self.store else document
        )
        options = ModelOptions.requested(document)
        extra = {name: value for name, value in options.extra.items() if name in _EXTRA}
        options = replace(options, tool_choice=document.get("tool_choice"), extra=extra)
        deltas = self.model.stream(messages, document.get("tools") or (), options)
        async with aclosing(deltas):  # a client that leaves stops the model
            return await answer_with(request, self.name, deltas, stream=bool(document.get("stream")))


async def answer_with(
    request: web.Request, model: str, deltas: AsyncIterator[Delta], *, stream: bool
) -> web.StreamResponse:
    """The model's deltas in OpenAI's form: as chunks that `[DONE]` ends, or as one JSON document."""
    if stream:
        return await _streamed(request, model, deltas)
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
    if message.attachments:
        fields["custom_content"] = {"attachments": [item.as_dict() for item in message.attachments]}
    choice = {"index": 0, "message": fields, "finish_reason": answer.finish_reason or "stop"}
    usage = _usage(answer.usage or Usage())
    return json_response(_envelope(model, "chat.completion") | {"choices": [choice], "usage": usage})


async def _streamed(request: web.Request, model: str, deltas: AsyncIterator[Delta]) -> web.StreamResponse:
    envelope = _envelope(model, "chat.completion.chunk")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    async def write(**fields: Any) -> None:
        await response.write(b"data: " + orjson.dumps(fields) + b"\n\n")

    async def write_delta(fields: dict[str, Any], finish_reason: str | None = None) -> None:
        await write(**envelope, choices=[{"index": 0, "delta": fields, "finish_reason": finish_reason}])

    async def write_item(kind: str, **item: Any) -> None:
        await write_delta({"custom_content": {kind: [item]}})

    await response.prepare(request)
    await write_delta({"role": "assistant"})
    stages, files, is_open = 0, count(), False
    try:
        async for delta in deltas:
            if is_open:  # what was waited for has arrived
                await write_item("stages", index=stages - 1, status="completed")
            is_open = isinstance(delta, Waiting)
            match delta:
                case TextDelta(text):
                    await write_delta({"content": text})
                case ReasoningDelta(text):
                    await write_delta({"reasoning_content": text})
                case ToolCallDelta():
                    await write_delta({"tool_calls": [_call(delta)]})
                case Waiting(text):
                    await write_item("stages", index=stages, name=text, status=None)
                    stages += 1
                case FileDelta(attachment):
                    await write_item("attachments", index=next(files), **attachment.as_dict())
                case ModelWarning(text):
                    logger.warning("%s: %s", model, text)
                case Usage():
                    await write(**envelope, choices=[], usage=_usage(delta))
                case Finish(reason):
                    await write_delta({}, reason)
                case _:
                    pass  # only Core's own deployments send more
    except ProviderError as error:
        await write(error=_error(error))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _envelope(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model, "object": kind}


def _call(delta: ToolCallDelta) -> dict[str, Any]:
    given = delta.arguments
    arguments = orjson.dumps(given).decode() if isinstance(given, dict) else given
    call: dict[str, Any] = {"index": delta.index or 0, "function": {"arguments": arguments or ""}}
    if delta.id is not None:
        call |= {"id": delta.id, "type": "function"}
    if delta.name is not None:
        call["function"]["name"] = delta.name
    return call


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
            known = [{name: item[name] for name in Attachment.__slots__ if name in item} for item in attachments]
            messages.append(message_from({**wire, "attachments": known}))
    except _WRONG_SHAPE:
        raise Refusal(400, MISSHAPEN) from None
    return messages
