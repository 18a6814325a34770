"""`/v1/chat/completions`: the answer of a run in OpenAI's shapes, whole or as a stream of chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from task.api.edge.failures import failure_of
from task.api.edge.rendering import DONE, EventStream, gone, json_bytes, json_response, sse, usage_data
from task.api.platform.runner import ActiveRun, Runner
from task.llm.base import Usage
from task.store.records import FINISHED, Event

NOBODY = 499  # what proxies log for a client that has left


@dataclass(frozen=True, slots=True)
class Answers:
    """Gives runs to clients; a client that leaves is no longer listened for."""

    runner: Runner
    heartbeat: float

    async def ended(self, active: ActiveRun, request: Request) -> bool:
        """Wait for the end of the run; False when the client has left before it."""
        async with self.runner.listening(active):
            leaving = asyncio.ensure_future(gone(request.receive))
            ending = asyncio.ensure_future(asyncio.shield(active.ended))
            try:
                await asyncio.wait({leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                ending.cancel()
                await asyncio.wait({leaving, ending})
            return active.ended.done()

    async def whole(self, active: ActiveRun, request: Request) -> Response:
        if not await self.ended(active, request):
            return Response(status_code=NOBODY)
        result = active.result
        assert result is not None
        if result.finish_reason is None:
            return failed(active)
        return json_response(completion(active))

    async def streamed(self, active: ActiveRun, *, usage: bool) -> Response:
        """The chunks as they come. What fails before the first one has the status of its failure."""
        parts = _chunks(self.runner, active, usage=usage)
        return await self.opened(active, parts)

    async def opened(self, active: ActiveRun, parts: AsyncGenerator[bytes]) -> Response:
        """The stream, once it is known that it begins with more than a failure."""
        first = asyncio.ensure_future(anext(parts, b""))
        try:
            await asyncio.wait({first}, timeout=self.heartbeat)
        except asyncio.CancelledError:  # the client has left already
            first.cancel()
            await asyncio.wait({first})
            await parts.aclose()
            raise
        if first.done() and broken(active) and active.result is not None and not active.result.text:
            await parts.aclose()
            await asyncio.shield(active.ended)
            return failed(active)
        return EventStream(_resumed(first, parts), self.heartbeat)


def failed(active: ActiveRun) -> Response:
    """The failure of a run that has said nothing."""
    result = active.result
    assert result is not None
    assert result.error is not None
    failure = result.failure or failure_of(result.error, active.model)
    ids = {"X-Run-Id": active.run.run_id, "X-Trace-Id": active.run.trace_id or ""}
    return json_response({**failure.body(), **_ids(active)}, failure.status, {**failure.headers, **ids})


def completion(active: ActiveRun) -> dict[str, Any]:
    """The documented body: OpenAI's, with the session, the run and its trace."""
    result, trace = active.result, active.trace
    assert result is not None
    message: dict[str, Any] = {"role": "assistant", "content": content_of(active), "refusal": None}
    if result.calls:
        message["tool_calls"] = [call.as_dict() for call in result.calls]
        message["content"] = message["content"] or None
    if active.attachments:
        message["custom_content"] = {"attachments": active.attachments}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": result.finish_reason}
    return {
        **_head(active, "chat.completion"),
        "choices": [choice],
        "usage": usage_of(active),
        "status": result.status,
        **_ids(active),
        "trace": trace.as_dict() if trace is not None else None,
    }


def content_of(active: ActiveRun) -> str:
    """All that the answer says, a question about waiting calls included."""
    result = active.result
    assert result is not None
    return "\n\n".join(filter(None, (result.text, result.question)))


def broken(active: ActiveRun) -> bool:
    """Whether the run has ended in a way that is told as an error."""
    return active.result is not None and active.result.finish_reason is None


def usage_of(active: ActiveRun) -> dict[str, Any]:
    return usage_data(active.result.usage if active.result is not None else Usage())


async def _chunks(runner: Runner, active: ActiveRun, *, usage: bool) -> AsyncGenerator[bytes]:
    head = _head(active, "chat.completion.chunk")
    nothing: dict[str, Any] = {"usage": None} if usage else {}
    begun = failed = False
    start, end = _frame(head, nothing)
    async with aclosing(runner.events(active.run.owner, active.run.run_id)) as events:
        async for event in events:
            if event.type not in ("text", "approval", "tool_calls", "error", FINISHED):
                continue
            if event.type == "error" and not broken(active):
                continue
            if not begun and event.type != "error":
                begun = True
                yield sse(
                    {**head, "choices": [_choice({"role": "assistant", "content": ""})], **nothing, **_ids(active)}
                )
            if event.type == "text":
                yield start + json_bytes(event.data["text"]) + end
            elif event.type == FINISHED:
                yield _last(active, head, nothing, usage=usage, told=failed)
            else:
                failed = failed or event.type == "error"
                yield _chunk(event, head, nothing, active)
    yield DONE


def _frame(head: Mapping[str, Any], rest: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """What stands around the text of a chunk: made once, because there are many of them."""
    whole = sse({**head, "choices": [_choice({"content": "@@"})], **rest})
    start, _, end = whole.partition(b'"@@"')
    return start, end


def _chunk(event: Event, head: Mapping[str, Any], rest: Mapping[str, Any], active: ActiveRun) -> bytes:
    if event.type == "error":
        return sse({"error": event.data["error"], **_ids(active)})
    if event.type == "approval":
        before = "\n\n" if active.result is not None and active.result.text else ""
        return sse({**head, "choices": [_choice({"content": f"{before}{event.data['text']}"})], **rest})
    calls = [{"index": number, **call} for number, call in enumerate(event.data["tool_calls"])]
    return sse({**head, "choices": [_choice({"tool_calls": calls})], **rest})


def _last(active: ActiveRun, head: Mapping[str, Any], rest: Mapping[str, Any], *, usage: bool, told: bool) -> bytes:
    result = active.result
    assert result is not None
    if result.finish_reason is None:
        failure = result.failure  # that the answer could not be kept shows after its last event
        return sse({**failure.body(), **_ids(active)}) if failure is not None and not told else b""
    ended = {"status": result.status, **_ids(active)}
    last = sse({**head, "choices": [_choice(_attached(active), result.finish_reason)], **rest, **ended})
    return last + (sse({**head, "choices": [], "usage": usage_of(active)}) if usage else b"")


def _attached(active: ActiveRun) -> dict[str, Any]:
    # DIAL's place for them; its index is what clients fold the pieces of a list by.
    attachments = [{"index": number, **item} for number, item in enumerate(active.attachments)]
    return {"custom_content": {"attachments": attachments}} if attachments else {}


def _choice(delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _head(active: ActiveRun, kind: str) -> dict[str, Any]:
    number = active.run.run_id.removeprefix("run_")
    return {"id": f"chatcmpl-{number}", "object": kind, "created": int(active.run.started_at), "model": active.model}


def _ids(active: ActiveRun) -> dict[str, Any]:
    return {"session_id": active.session_id, "run_id": active.run.run_id, "trace_id": active.run.trace_id}


async def _resumed(first: asyncio.Future[bytes], parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(parts):
        try:
            yield await first
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})
        async for part in parts:
            yield part
