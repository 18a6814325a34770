"""Serve a chat model of ours, the scripted demo, in OpenAI's wire format."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from task.conversation.messages import Attachment, CustomContent, FunctionCall, Message, Role, ToolCall
from task.errors import ProviderError
from task.llm.base import (
    AttachmentDelta,
    ChatModel,
    Delta,
    Finish,
    ModelOptions,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from task.local_core.refusal import Refusal, json_answer
from task.local_core.relay import Answering

_OPTIONS = ("temperature", "top_p", "max_tokens", "stop", "seed", "tool_choice")
_ATTACHMENT_FIELDS = ("type", "title", "data", "url", "reference_url", "reference_type")


class DemoServed:
    """Answers completions from a chat model's deltas, streamed or as one block."""

    def __init__(self, model: ChatModel, name: str) -> None:
        self._model = model
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def answer(
        self, request: web.Request, document: Mapping[str, Any], answering: Answering
    ) -> web.StreamResponse:
        messages = [_message(item) for item in document.get("messages") or ()]
        deltas = self._model.stream(messages, document.get("tools") or (), _options(document))
        envelope = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": self.name}
        async with aclosing(deltas):  # a caller who leaves stops the model
            if document.get("stream"):
                return await _streamed(request, deltas, envelope, answering)
            return await _block(request, deltas, envelope, answering)


async def _streamed(
    request: web.Request, deltas: AsyncIterator[Delta], envelope: dict[str, Any], answering: Answering
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-UPSTREAM-ATTEMPTS": "1"})
    await response.prepare(request)
    envelope = envelope | {"object": "chat.completion.chunk"}
    await response.write(_event(envelope | _choice({"role": "assistant"})))
    try:
        async for delta in deltas:
            await response.write(_event(envelope | _chunk(delta)))
    except ProviderError as error:
        await response.write(_event({"error": _error(error)}))
    answering.ended(200)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _block(
    request: web.Request, deltas: AsyncIterator[Delta], envelope: dict[str, Any], answering: Answering
) -> web.StreamResponse:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    finish_reason, usage = "stop", Usage()
    try:
        async for delta in deltas:
            if isinstance(delta, Finish):
                finish_reason = delta.reason
            elif isinstance(delta, Usage):
                usage += delta
            else:
                _fold(message, _wire(delta))
    except ProviderError as error:
        raise Refusal(500, _error(error)) from None
    for call in message.get("tool_calls", ()):
        call.pop("index")
    answering.ended(200)
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    document = envelope | {"object": "chat.completion", "choices": [choice], "usage": _usage(usage)}
    answer = json_answer(request, document)
    answer.headers["X-UPSTREAM-ATTEMPTS"] = "1"
    return answer


def _chunk(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, Finish):
        return _choice({}, delta.reason)
    if isinstance(delta, Usage):
        return {"choices": [], "usage": _usage(delta)}
    return _choice(_wire(delta))


def _wire(delta: TextDelta | ReasoningDelta | ToolCallDelta | AttachmentDelta) -> dict[str, Any]:
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    if isinstance(delta, AttachmentDelta):
        return {"custom_content": {"attachments": [delta.attachment.as_dict()]}}
    arguments = delta.arguments if not isinstance(delta.arguments, dict) else orjson.dumps(delta.arguments).decode()
    call: dict[str, Any] = {"index": delta.index or 0, "function": {"arguments": arguments or ""}}
    if delta.id is not None:
        call |= {"id": delta.id, "type": "function"}
    if delta.name is not None:
        call["function"]["name"] = delta.name
    return {"tool_calls": [call]}


def _fold(message: dict[str, Any], wire: dict[str, Any]) -> None:
    for field in ("content", "reasoning_content"):
        if field in wire:
            message[field] = message.get(field, "") + wire[field]
    for attachment in wire.get("custom_content", {}).get("attachments", ()):
        message.setdefault("custom_content", {"attachments": []})["attachments"].append(attachment)
    for call in wire.get("tool_calls", ()):
        _fold_call(message.setdefault("tool_calls", []), call)


def _fold_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    known = next((call for call in calls if call["index"] == piece["index"]), None)
    if known is None:
        calls.append(piece)
        return
    known["function"]["arguments"] += piece["function"]["arguments"]


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _usage(usage: Usage) -> dict[str, int]:
    total = usage.prompt_tokens + usage.completion_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": total,
    }


def _error(error: ProviderError) -> dict[str, Any]:
    shown = {"display_message": error.display_message} if error.display_message else {}
    return {"message": str(error), "type": "runtime_error", "code": error.code or "500"} | shown


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def _options(document: Mapping[str, Any]) -> ModelOptions:
    told: dict[str, Any] = {name: document[name] for name in _OPTIONS if document.get(name) is not None}
    if document.get("max_completion_tokens") is not None:
        told["max_tokens"] = document["max_completion_tokens"]
    return ModelOptions(**told)


def _message(wire: Any) -> Message:
    try:
        return Message(
            Role(wire["role"]),
            wire.get("content"),
            tool_calls=tuple(_call(call) for call in wire.get("tool_calls") or ()),
            tool_call_id=wire.get("tool_call_id"),
            name=wire.get("name"),
            custom_content=_custom_content(wire.get("custom_content")),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        fault = {"message": "A message is not in OpenAI's shape", "type": "invalid_request_error", "code": "400"}
        raise Refusal(400, fault) from None


def _call(wire: dict[str, Any]) -> ToolCall:
    function = wire["function"]
    return ToolCall(wire["id"], FunctionCall(function["name"], function.get("arguments") or "{}"))


def _custom_content(wire: dict[str, Any] | None) -> CustomContent | None:
    attachments = (wire or {}).get("attachments")
    if not attachments:
        return None
    known = ({name: item[name] for name in _ATTACHMENT_FIELDS if name in item} for item in attachments)
    return CustomContent(tuple(Attachment(**fields) for fields in known))
