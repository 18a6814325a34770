"""Serve a chat model of ours in OpenAI's wire format: the scripted demo, or one that `models.py` connects to."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from task.conversation.messages import Attachment, CustomContent, FunctionCall, Message, Role, ToolCall
from task.errors import ProviderError
from task.llm.accumulator import Accumulator
from task.llm.base import (
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
from task.local.core.relay import UPSTREAM_ATTEMPTS, ResponseHooks
from task.local.core.responses import Refusal, json_response
from task.local.core.upstream import PlainMessages

logger = logging.getLogger(__name__)

_EXTRA = frozenset({"response_format", "presence_penalty", "frequency_penalty"})
_ATTACHMENT_FIELDS = ("type", "title", "data", "url", "reference_url", "reference_type")


class CompletionStream:
    """A streamed completion of a model: chunks in OpenAI's form, ended by `[DONE]`."""

    def __init__(self, model: str, hooks: ResponseHooks) -> None:
        self._envelope = _envelope(model, "chat.completion.chunk")
        self._hooks = hooks
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **UPSTREAM_ATTEMPTS})

    async def start(self, request: web.Request) -> None:
        await self._response.prepare(request)

    def event(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        return _event(self._envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

    def usage_event(self, usage: Usage) -> bytes:
        return _event(self._envelope | {"choices": [], "usage": _usage(usage)})

    async def write(self, events: bytes) -> None:
        await self._response.write(events)

    async def end(self) -> web.StreamResponse:
        self._hooks.ended(200)
        await self._response.write(b"data: [DONE]\n\n")
        await self._response.write_eof()
        return self._response


def block(model: str, message: dict[str, Any], finish_reason: str, usage: Usage) -> dict[str, Any]:
    """A completion as one JSON document."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return _envelope(model, "chat.completion") | {"choices": [choice], "usage": _usage(usage)}


def block_response(document: dict[str, Any], hooks: ResponseHooks) -> web.Response:
    hooks.ended(200)
    response = json_response(document)
    response.headers.update(UPSTREAM_ATTEMPTS)
    return response


@dataclass(frozen=True, slots=True)
class ChatModelServer:
    """Answers completions from a chat model's deltas, streamed or as one block."""

    name: str
    model: ChatModel
    plain: PlainMessages | None = None

    async def respond(
        self, request: web.Request, document: Mapping[str, Any], hooks: ResponseHooks
    ) -> web.StreamResponse:
        wire = document.get("messages") or ()
        messages = [_message(item) for item in (await self.plain.of(wire) if self.plain else wire)]
        asked = ModelOptions.requested(document)
        extra = {name: value for name, value in asked.extra.items() if name in _EXTRA}
        options = replace(asked, tool_choice=document.get("tool_choice"), extra=extra)
        deltas = self.model.stream(messages, document.get("tools") or (), options)
        async with aclosing(deltas):  # a client that leaves stops the model
            if document.get("stream"):
                return await self._streamed(request, deltas, hooks)
            return await self._block(deltas, hooks)

    async def _streamed(
        self, request: web.Request, deltas: AsyncIterator[Delta], hooks: ResponseHooks
    ) -> web.StreamResponse:
        stream = CompletionStream(self.name, hooks)
        await stream.start(request)
        await stream.write(stream.event({"role": "assistant"}))
        waiting = WaitingStages()
        try:
            async for delta in deltas:
                for shown in waiting.shown(delta):
                    await stream.write(stream.event(shown))
                if isinstance(delta, Waiting):
                    continue
                if isinstance(delta, ModelWarning):
                    logger.warning("%s: %s", self.name, delta.text)
                elif isinstance(delta, Usage):
                    await stream.write(stream.usage_event(delta))
                elif isinstance(delta, Finish):
                    await stream.write(stream.event({}, delta.reason))
                else:
                    await stream.write(stream.event(_rendered(delta)))
        except ProviderError as error:
            await stream.write(_event({"error": _error(error)}))
        return await stream.end()

    async def _block(self, deltas: AsyncIterator[Delta], hooks: ResponseHooks) -> web.Response:
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
        if message.custom_content:
            attachments = [attachment.as_dict() for attachment in message.custom_content.attachments]
            fields["custom_content"] = {"attachments": attachments}
        document = block(self.name, fields, answer.finish_reason or "stop", answer.usage or Usage())
        return block_response(document, hooks)


class WaitingStages:
    """What is waited for, as DIAL's stages, one after the other."""

    def __init__(self) -> None:
        self._index, self._is_open = -1, False

    def shown(self, delta: Delta) -> list[dict[str, Any]]:
        """The deltas, in DIAL's form, by which the stages follow `delta`."""
        stages: list[dict[str, Any]] = []
        if self._is_open:
            stages.append({"index": self._index, "status": "completed"})
        self._is_open = isinstance(delta, Waiting)
        if isinstance(delta, Waiting):
            self._index += 1
            stages.append({"index": self._index, "name": delta.text, "status": None})
        return [{"custom_content": {"stages": stages}}] if stages else []


def _envelope(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model, "object": kind}


def _rendered(delta: TextDelta | ReasoningDelta | ToolCallDelta | FileDelta) -> dict[str, Any]:
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    if isinstance(delta, FileDelta):
        return {"custom_content": {"attachments": [delta.attachment.as_dict()]}}
    arguments = delta.arguments if not isinstance(delta.arguments, dict) else orjson.dumps(delta.arguments).decode()
    call: dict[str, Any] = {"index": delta.index or 0, "function": {"arguments": arguments or ""}}
    if delta.id is not None:
        call |= {"id": delta.id, "type": "function"}
    if delta.name is not None:
        call["function"]["name"] = delta.name
    return {"tool_calls": [call]}


def _usage(usage: Usage) -> dict[str, Any]:
    total = usage.prompt_tokens + usage.completion_tokens
    details = {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}} if usage.cached_tokens else {}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": total,
        **details,
    }


def _error(error: ProviderError) -> dict[str, Any]:
    shown = {"display_message": error.display_message} if error.display_message else {}
    return {"message": str(error), "type": "runtime_error", "code": error.code or "500"} | shown


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def _message(wire: Any) -> Message:
    try:
        attachments = (wire.get("custom_content") or {}).get("attachments") or ()
        known = ({name: item[name] for name in _ATTACHMENT_FIELDS if name in item} for item in attachments)
        calls = [(call["id"], call["function"]) for call in wire.get("tool_calls") or ()]
        return Message(
            Role(wire["role"]),
            wire.get("content"),
            tool_calls=tuple(
                ToolCall(id, FunctionCall(function["name"], function.get("arguments") or "{}"))
                for id, function in calls
            ),
            tool_call_id=wire.get("tool_call_id"),
            reasoning_content=wire.get("reasoning_content"),
            name=wire.get("name"),
            custom_content=CustomContent(tuple(Attachment(**fields) for fields in known)) if attachments else None,
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        fault = {"message": "A message is not in OpenAI's shape", "type": "invalid_request_error", "code": "400"}
        raise Refusal(400, fault) from None
