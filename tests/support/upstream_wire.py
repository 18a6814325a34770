"""OpenAI's chat completion answers byte by byte: how the test upstream writes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from task.conversation.inputs import without_time
from task.llm.base import ReasoningDelta, TextDelta, ToolCallDelta, Usage
from task.llm.scripted import Pause, Reply


class Reset:
    """Cut the TCP connection."""


class Hang:
    """Say nothing more, but stay connected."""


RESET = Reset()
HANG = Hang()
Part = bytes | Pause | Reset | Hang


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived; header names are lower case, `messages` are without the date and the time of day."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return timeless(self.body["messages"])

    @property
    def tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.body.get("tools", ())]

    @property
    def last(self) -> dict[str, Any]:
        return self.messages[-1]


def timeless(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages without the date and the time, so that what a test expects of them is the same at any time."""

    def plain(content: Any) -> Any:
        if isinstance(content, list):
            parts = [{**part, "text": without_time(part["text"])} if "text" in part else part for part in content]
            return [part for part in parts if part.get("text", True)]
        return without_time(content) if isinstance(content, str) else content

    return [{**item, "content": plain(item["content"])} if "content" in item else {**item} for item in messages]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer byte by byte."""

    parts: tuple[Part, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})


@dataclass(frozen=True, slots=True)
class Framing:
    """How an answer looks on the wire; the default is OpenAI's own look."""

    done: bool = True
    filter_chunk_first: bool = False
    usage_apart: bool = True
    null_content: bool = False
    as_json: bool = False
    bytes_per_write: int | None = None
    seconds_per_write: float = 0.0


PLAIN = Framing()


def rendered(reply: Reply, received: Received, framing: Framing = PLAIN) -> Answer:
    """A reply in the wire format that the request asked for."""
    if framing.as_json or not received.body.get("stream"):
        body = json.dumps(_whole(reply, received)).encode()
        return Answer((body,), headers={"Content-Type": "application/json"})
    parts = framed_parts(chunks_of(reply, received, framing), framing)
    return Answer(tuple(_split(parts, framing)))


def chunks_of(reply: Reply, received: Received, framing: Framing) -> list[dict[str, Any] | Pause]:
    filtered: dict[str, Any] = chunk(received, {}) | {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    chunks: list[dict[str, Any] | Pause] = [filtered] if framing.filter_chunk_first else []
    chunks.append(chunk(received, {"role": "assistant", "content": None if framing.null_content else ""}))
    for event in reply.events:
        if isinstance(event, Pause):
            chunks.append(event)
        chunks.extend(chunk(received, delta) for delta in _wire_deltas(event, len(received.messages), framing))
    last = chunk(received, {}, reply.finish.reason)
    if not received.body.get("stream_options", {}).get("include_usage"):
        return [*chunks, last]
    if framing.usage_apart:
        return [*chunks, last, chunk(received, {}) | {"choices": [], "usage": _usage(reply)}]
    return [*chunks, last | {"usage": _usage(reply)}]


def _wire_deltas(event: object, turn: int, framing: Framing) -> list[dict[str, Any]]:
    nulls: dict[str, Any] = {"content": None} if framing.null_content else {}
    match event:
        case TextDelta(text):
            return [{"content": text}]
        case ReasoningDelta(text):
            return [nulls | {"reasoning_content": text}]
        case ToolCallDelta():
            return [nulls | {"tool_calls": [fragment]} for fragment in _wire_fragments(event, turn)]
        case _:
            return []


def _wire_fragments(call: ToolCallDelta, turn: int) -> list[dict[str, Any]]:
    """By the standard: id and name first, then the arguments in pieces."""
    first: dict[str, Any] = {"index": call.index}
    if call.name is not None:
        function = {"name": call.name, "arguments": ""}
        first |= {"id": call.id or f"call_{turn}_{call.index}", "type": "function", "function": function}
    raw = _raw(call)
    middle = len(raw) // 2
    rest = [{"index": call.index, "function": {"arguments": piece}} for piece in (raw[:middle], raw[middle:]) if piece]
    return [first, *rest] if call.name is not None else rest


def chunk(received: Received, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-test", "object": "chat.completion.chunk", "created": 1,
        "model": received.body.get("model", "test-model"),
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }  # fmt: skip


def _usage(reply: Reply) -> dict[str, Any]:
    usage = next((event for event in reply.events if isinstance(event, Usage)), Usage(10, 5))
    total = usage.prompt_tokens + usage.completion_tokens
    return {
        "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }  # fmt: skip


def _whole(reply: Reply, received: Received) -> dict[str, Any]:
    text = "".join(event.text for event in reply.events if isinstance(event, TextDelta))
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    calls: list[dict[str, Any]] = []
    for call in (call for call in reply.calls if call.name):
        named = {"id": call.id or f"call_{len(received.messages)}_{call.index}", "type": "function"}
        calls.append({**named, "function": {"name": call.name, "arguments": _raw(call)}})
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": reply.finish.reason}
    return chunk(received, {}) | {"object": "chat.completion", "choices": [choice], "usage": _usage(reply)}


def _raw(call: ToolCallDelta) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments or {})


def framed_parts(chunks: Sequence[Mapping[str, Any] | Pause], framing: Framing) -> list[Part]:
    parts: list[Part] = []
    for chunk in chunks:
        if isinstance(chunk, Pause):
            parts.append(chunk)
            continue
        parts.append(b"data: %b\n\n" % json.dumps(chunk, ensure_ascii=False).encode())
    return [*parts, b"data: [DONE]\n\n"] if framing.done else parts


def _split(parts: Sequence[Part], framing: Framing) -> list[Part]:
    if framing.bytes_per_write is None:
        return list(parts)
    split: list[Part] = []
    for part in parts:
        if not isinstance(part, bytes):
            split.append(part)
            continue
        size = framing.bytes_per_write
        for start in range(0, len(part), size):
            split += [part[start : start + size], Pause(framing.seconds_per_write)]
    return split
