"""A protocol-true OpenAI upstream on a free loopback port, for tests.

    async with openai_upstream(wants("calculator", expression="25*47"), says("1175")) as peer:
        peer.url            base URL for the OpenAI backend ("http://127.0.0.1:PORT/v1")
        peer.endpoint       the same server as a DIAL endpoint ("http://127.0.0.1:PORT"):
                            POST /openai/deployments/{id}/chat/completions
        peer.requests       what arrived: Received(path, query, headers, body), with .messages, .tools, .last
        peer.answered       answers written to their end
        peer.disconnects    requests whose client went away before the answer ended
        peer.connections    TCP connections opened to it
        await peer.disconnected(1)      waits until that many clients have gone (1 s)
        await peer.received(2)          waits until that many requests have come (5 s)

What is served: one item per request, in order; after the last one `then` answers, else a 400 "script_exhausted".
An item is one of
    Reply                       from task.llm.scripted: says(...), wants(...), `says("...") & wants(...)`
    Answer                      exact bytes: status, headers, parts (bytes | Pause | RESET | HANG)
    Callable[[Received], Reply | Answer]    computes it, e.g. from the table that reached the model
Every fault is such an item: `http_error(429, retry_after=2)`, `plain_error(502, "Bad gateway")`, `html_error(503)`,
`malformed_chunk(reply)`, `broken_off(reply, chunks=2)` (reset), `broken_off(reply, chunks=2, reset=False)` (clean end,
no finish_reason), `error_in_stream(reply, chunks=2)`, `cut_arguments("tool", '{"a": "b')`, `hanging(reply, chunks=1)`,
`never_answering()`, `parallel_calls("tool", 200)`, `dripping(reply, seconds=0.001)`, `framed(reply, Framing(...))` for
another look of the same answer. `framing=` sets the look of every answer.

Like the real thing the peer refuses an invalid history with a 400: see tests/support/upstream_rules.py (`strict=False`
turns that off). `api_key="..."` makes it answer 401 to any other key, in `Authorization` or `Api-Key`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from task.llm.base import Finish, ToolCallDelta
from task.llm.scripted import Pause, Reply
from tests.support.core import served
from tests.support.upstream_rules import fault_of
from tests.support.upstream_wire import (
    HANG,
    PLAIN,
    RESET,
    Answer,
    Framing,
    Hang,
    Part,
    Received,
    Reset,
    chunks_of,
    framed_parts,
    rendered,
)  # fmt: skip

Item = Reply | Answer | Callable[[Received], "Reply | Answer"]


class Upstream:
    """The running peer; see the module's docstring."""

    def __init__(
        self,
        items: Sequence[Item] = (),
        then: Item | None = None,
        framing: Framing = PLAIN,
        api_key: str | None = None,
        strict: bool = True,
    ) -> None:
        self.requests: list[Received] = []
        self.answered = self.disconnects = self.connections = self.port = self._served = 0
        self._items, self._then = items, then
        self._framing, self._api_key, self._strict = framing, api_key, strict
        self._changed = asyncio.Condition()
        self._seen: set[object] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.endpoint}/v1"

    async def disconnected(self, count: int = 1, within: float = 30) -> None:
        await self._until(lambda: self.disconnects >= count, within)

    async def received(self, count: int, within: float = 30) -> None:
        await self._until(lambda: len(self.requests) >= count, within)

    async def _until(self, condition: Callable[[], bool], within: float) -> None:
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def list_models(self, request: web.Request) -> web.Response:
        if self._api_key is not None and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return web.json_response({"error": {"message": "Incorrect API key provided"}}, status=401)
        return web.json_response({"object": "list", "data": [{"id": "test-model", "object": "model"}]})

    async def describe_model(self, request: web.Request) -> web.Response:
        return web.json_response({"id": request.match_info["id"], "object": "model"})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if request.transport not in self._seen:
            self._seen.add(request.transport)
            self.connections += 1
        received = await _received(request)
        self.requests.append(received)
        await self._notify()
        try:
            response = await self._write(request, self._answer(received))
        except (asyncio.CancelledError, ConnectionResetError):
            self.disconnects += 1
            await asyncio.shield(self._notify())
            raise
        self.answered += 1
        return response

    def _answer(self, received: Received) -> Answer:
        key = received.headers.get("authorization", "").removeprefix("Bearer ") or received.headers.get("api-key")
        if self._api_key is not None and key != self._api_key:
            return http_error(401, f"Incorrect API key provided: {key}", code="invalid_api_key")
        fault = fault_of(received.body) if self._strict else None
        if fault is not None:
            return http_error(400, fault, code="invalid_request")
        item = self._next_item()
        answer = item if isinstance(item, Reply | Answer) else item(received)
        return answer if isinstance(answer, Answer) else rendered(answer, received, self._framing)

    def _next_item(self) -> Item:
        number = self._served
        self._served += 1
        if number < len(self._items):
            return self._items[number]
        return self._then or http_error(400, f"no reply number {number + 1}", code="script_exhausted")

    async def _write(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=dict(answer.headers))
        prepared = False
        for part in answer.parts:
            if isinstance(part, Pause):
                await asyncio.sleep(part.seconds)
            elif isinstance(part, Hang):
                await asyncio.Event().wait()
            elif isinstance(part, Reset):
                await self._cut(request)
                return response
            else:
                if not prepared:
                    await response.prepare(request)
                    prepared = True
                await response.write(part)
        if not prepared:
            await response.prepare(request)
        await response.write_eof()
        return response

    async def _cut(self, request: web.Request) -> None:
        await asyncio.sleep(0.01)  # what was written before goes out first
        if request.transport is not None:
            request.transport.abort()


async def _received(request: web.Request) -> Received:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Received(request.path, dict(request.query), headers, json.loads(await request.read()))


def upstream_app(peer: Upstream) -> web.Application:
    """The server's routes."""
    app = web.Application(client_max_size=256 * 2**20)
    app.router.add_post("/v1/chat/completions", peer.complete)
    app.router.add_post("/openai/deployments/{id:.+}/chat/completions", peer.complete)
    app.router.add_get("/v1/models", peer.list_models)
    app.router.add_get("/openai/models/{id:.+}", peer.describe_model)
    return app


@asynccontextmanager
async def openai_upstream(
    *items: Item,
    then: Item | None = None,
    framing: Framing = PLAIN,
    api_key: str | None = None,
    strict: bool = True,
    port: int = 0,
) -> AsyncGenerator[Upstream]:
    peer = Upstream(items, then, framing, api_key, strict)
    async with served(upstream_app(peer), port=port, shutdown_timeout=0.05) as url:
        peer.port = int(url.rpartition(":")[2])
        yield peer


# The answers that a test can request: replies in odd shapes, and every fault


def framed(reply: Reply, framing: Framing) -> Callable[[Received], Answer]:
    return lambda received: rendered(reply, received, framing)


def dripping(reply: Reply, seconds: float = 0.001) -> Callable[[Received], Answer]:
    """The answer byte by byte."""
    return framed(reply, Framing(bytes_per_write=1, seconds_per_write=seconds))


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
