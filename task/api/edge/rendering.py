"""JSON bodies, and streams of server-sent events and of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from task.api.edge.schemas import SCHEMA_REFERENCE
from task.store.records import json_bytes

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": heartbeat\n\n"


class JsonResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json_bytes(content)


def stream_of(event: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """A stream of such events as FastAPI's `responses`; OpenAPI 3.1 cannot describe it otherwise."""
    reference = {"$ref": SCHEMA_REFERENCE.format(model=event.__name__)}
    return {200: {"content": {"text/event-stream": {"x-event": reference}}}}


def sse(value: Any, *, event: str | None = None, number: int | None = None) -> bytes:
    """One server-sent event."""
    head = (b"id: %d\n" % number if number is not None else b"") + (f"event: {event}\n".encode() if event else b"")
    return head + b"data: " + json_bytes(value) + b"\n\n"


class EventStream(Response):
    """A stream of server-sent events; the SDK's middleware cancels it when its listener leaves.

    `parts` is closed in every case, and so is `first`, the wait for the first part where it has begun already; after
    `heartbeat` seconds without a part a comment keeps the connection alive.
    """

    media_type = "text/event-stream"

    def __init__(
        self, parts: AsyncGenerator[bytes], heartbeat: float, first: asyncio.Future[bytes | None] | None = None
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._parts, self._heartbeat, self._first, self._sent = parts, heartbeat, first, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        beating = asyncio.create_task(self._beat(send))
        first = self._first or asyncio.ensure_future(anext(self._parts, None))
        try:
            async with aclosing(self._parts) as parts:
                try:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    part = await first
                finally:
                    if not first.done():
                        first.cancel()
                        await asyncio.wait({first})
                while part is not None:
                    self._sent += 1
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    part = await anext(parts, None)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            beating.cancel()
            await asyncio.wait({beating})

    async def _beat(self, send: Send) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self._heartbeat)
            if self._sent == before:
                await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})


class ByteStream(StreamingResponse):
    """Bytes as they arrive; the SDK's middleware cancels it when the caller leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette's own way never cancels a source that always has something ready.
        await self.stream_response(send)
