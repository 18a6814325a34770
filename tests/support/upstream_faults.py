"""The answers that a test can request from an upstream: replies in odd shapes, and every fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from task.llm.base import Finish, ToolCallDelta
from task.llm.scripted import Reply
from tests.support.streams import Stream
from tests.support.upstream_wire import (
    HANG,
    RESET,
    Answer,
    Framing,
    Part,
    Received,
    chunk,
    chunks_of,
    framed_parts,
    rendered,
)  # fmt: skip


def always(reply: Reply) -> Callable[[Received], Reply]:
    return lambda _: reply


def framed(reply: Reply, framing: Framing) -> Callable[[Received], Answer]:
    return lambda received: rendered(reply, received, framing)


def dripping(reply: Reply, seconds: float = 0.001) -> Callable[[Received], Answer]:
    """The answer byte by byte."""
    return framed(reply, Framing(bytes_per_write=1, seconds_per_write=seconds))


def fragments(stream: Stream, finish: str = "tool_calls") -> Callable[[Received], Answer]:
    """Tool calls cut as tests.support.streams has cut them."""

    def answer(received: Received) -> Answer:
        deltas: list[dict[str, Any]] = [{"tool_calls": list(chunk)} for chunk in stream.chunks]
        chunks = [chunk(received, delta) for delta in deltas]
        return Answer(tuple(framed_parts([*chunks, chunk(received, {}, finish)], Framing())))

    return answer


def parallel_calls(tool: str, count: int, **arguments: Any) -> Reply:
    """One answer with many calls of one tool; each gets its `number`."""
    return Reply(tuple(ToolCallDelta(n, f"call_{n}", tool, {**arguments, "number": n}) for n in range(count)))


def http_error(
    status: int, message: str = "", *, code: str | None = None, retry_after: float | str | None = None, **more: Any
) -> Answer:
    """An error before the stream, shaped like OpenAI's."""
    error = {"message": message or f"status {status}", "type": "test_error", "param": None, "code": code} | more
    headers = {"Content-Type": "application/json"}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return Answer((json.dumps({"error": error}).encode(),), status, headers)


def plain_error(status: int, text: str, content_type: str = "text/plain") -> Answer:
    """An error as DIAL Core and many gateways send it."""
    return Answer((text.encode(),), status, {"Content-Type": content_type})


def html_error(status: int) -> Answer:
    page = f"<html><head><title>{status}</title></head><body><h1>{status} nginx</h1></body></html>"
    return plain_error(status, page, "text/html")


def malformed_chunk(reply: Reply, chunks: int = 1) -> Callable[[Received], Answer]:
    return _cut_after(reply, chunks, b'data: {"choices": [{"delta": {"content": \n\n')


def broken_off(reply: Reply, chunks: int = 1, *, reset: bool = True) -> Callable[[Received], Answer]:
    """The stream ends in the middle: by a reset, or cleanly but without a finish reason."""
    return _cut_after(reply, chunks, *((RESET,) if reset else ()))


def hanging(reply: Reply, chunks: int = 1) -> Callable[[Received], Answer]:
    return _cut_after(reply, chunks, HANG)


def never_answering() -> Answer:
    return Answer((HANG,))


def error_in_stream(reply: Reply, chunks: int = 1, **error: Any) -> Callable[[Received], Answer]:
    """An error event under HTTP 200."""
    body = {"message": "the server had an error", "type": "server_error", "code": None} | error
    return _cut_after(reply, chunks, b"data: " + json.dumps({"error": body}).encode() + b"\n\n", b"data: [DONE]\n\n")


def cut_arguments(tool: str, arguments: str, finish: str = "length") -> Reply:
    """A call whose arguments stop in the middle because the answer got too long."""
    return Reply((ToolCallDelta(0, "call_cut", tool, ""), ToolCallDelta(0, None, None, arguments), Finish(finish)))


def _cut_after(reply: Reply, chunks: int, *parts: Part) -> Callable[[Received], Answer]:
    def answer(received: Received) -> Answer:
        whole = framed_parts(chunks_of(reply, received, Framing()), Framing(done=False))
        ends = [number for number, part in enumerate(whole) if isinstance(part, bytes)]
        return Answer((*whole[: ends[chunks - 1] + 1], *parts) if chunks else parts)

    return answer
