"""Pass a request on to an application or model, and its response back as it arrives."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from task.llm.transport import KEEP_ALIVE_SECONDS, sendable
from task.local.core.clock import Clock, IdleLimit
from task.local.core.responses import Refusal
from task.local.core.sharing import ResponseWatch

logger = logging.getLogger(__name__)

IDLE_SECONDS = 300.0
CONNECT_SECONDS = 10.0

_NOT_PASSED = frozenset({
    "connection", "keep-alive", "host", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "content-length", "accept-encoding",
})  # fmt: skip
_FOR_CORE = frozenset({
    "api-key", "traceparent", "tracestate", "x-dial-application-id", "x-dial-application-properties",
    "x-dial-deployment-features", "x-dial-deployment-id", "x-dial-override-name",
})  # fmt: skip
_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class Target:
    """One address to try."""

    url: str
    headers: CIMultiDict[str]


class Rewriter(Protocol):
    """Changes a response's body on its way; raises aiohttp.ClientError when the rest must not pass."""

    def feed(self, data: bytes) -> bytes: ...
    def finish(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ResponseHooks:
    """What happens to a response on its way: which statuses are kept from the caller, what reads along (by content
    type), what changes its body (by its headers), and what is called when it has ended, before the caller sees that."""

    unreachable: Refusal = field(default_factory=lambda: Refusal(502, "connection error to origin"))
    broken: Refusal = field(default_factory=lambda: Refusal(502, "connection error to origin"))
    is_swallowed: Callable[[int], bool] = lambda _: False
    watch: Callable[[str], ResponseWatch | None] = lambda _: None
    rewrite: Callable[[Mapping[str, str]], Rewriter | None] = lambda _: None
    ended: Callable[[int], None] = lambda _: None


class Relay:
    """The one pooled client towards applications and models; `close` ends it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def send(
        self, request: web.Request, targets: Sequence[Target], body: bytes, hooks: ResponseHooks
    ) -> web.StreamResponse:
        """The response of the first target that gives one. Raises: Refusal when none does."""
        refusal = Refusal(503)
        for attempt, target in enumerate(targets, 1):
            outcome = await self._attempt(request, target, body, attempt, hooks)
            if isinstance(outcome, web.StreamResponse):
                return outcome
            refusal = outcome
        raise refusal

    async def _attempt(
        self, request: web.Request, target: Target, body: bytes, attempt: int, hooks: ResponseHooks
    ) -> web.StreamResponse | Refusal:
        response: web.StreamResponse | None = None
        try:
            async with (
                IdleLimit(self._clock, IDLE_SECONDS) as idle,
                self._session().request(
                    request.method,
                    URL(target.url, encoded=True),
                    headers=target.headers,
                    data=sendable(body) if body else None,
                    allow_redirects=False,
                    skip_auto_headers=_AUTO_HEADERS,
                ) as origin,
            ):
                if hooks.is_swallowed(origin.status):
                    return _swallowed(origin)
                response = await _started(request, origin, attempt)
                await _pump(origin, response, hooks, idle)
        except aiohttp.ClientConnectorError as error:
            logger.warning(
                "nothing answers at %s://%s:%s (%s)",
                URL(target.url).scheme,
                error.host,
                error.port,
                error.os_error.strerror,
            )
            return hooks.unreachable
        except (aiohttp.ClientError, TimeoutError):
            if response is None:
                return hooks.broken
            if request.transport is not None:  # so that half a response does not look complete
                request.transport.close()
        return response

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._client


def passed_headers(headers: Mapping[str, str], *, authorization: bool) -> CIMultiDict[str]:
    """The caller's headers that an application may see, with a new span of the same trace."""
    passed = _without(headers, _FOR_CORE if authorization else _FOR_CORE | {"authorization"})
    passed["traceparent"] = _next_span(headers.get("traceparent", ""))
    return passed


def with_query(endpoint: str, query: str) -> str:
    """The endpoint with the caller's query string, byte for byte."""
    if not query:
        return endpoint
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"


def _without(headers: Mapping[str, str], dropped: frozenset[str] = frozenset()) -> CIMultiDict[str]:
    unwanted = _NOT_PASSED | dropped
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in unwanted)


def _next_span(traceparent: str) -> str:
    parts = traceparent.split("-")
    if len(parts) >= 4 and len(parts[1]) == 32:
        return f"{parts[0]}-{parts[1]}-{secrets.token_hex(8)}-{parts[3]}"
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def _swallowed(origin: aiohttp.ClientResponse) -> Refusal:
    if origin.status != 429:
        return Refusal(502, "No route")
    retry_after = origin.headers.get("Retry-After")
    return Refusal(503, "Service is not available", headers={"Retry-After": retry_after} if retry_after else None)


async def _started(request: web.Request, origin: aiohttp.ClientResponse, attempt: int) -> web.StreamResponse:
    response = web.StreamResponse(status=origin.status, reason=origin.reason, headers=_without(origin.headers))
    response.headers["X-UPSTREAM-ATTEMPTS"] = str(attempt)
    await response.prepare(request)
    return response


async def _pump(
    origin: aiohttp.ClientResponse, response: web.StreamResponse, hooks: ResponseHooks, idle: IdleLimit
) -> None:
    watch = hooks.watch(origin.headers.get("Content-Type", ""))
    rewriter = hooks.rewrite(origin.headers)
    async for data in origin.content.iter_any():
        if watch is not None:
            watch.feed(data)
        if changed := data if rewriter is None else rewriter.feed(data):
            await response.write(changed)
        idle.touch()
    if rewriter is not None and (rest := rewriter.finish()):
        await response.write(rest)
    if watch is not None:
        watch.finish()
    hooks.ended(origin.status)
    await response.write_eof()


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises: Refusal 422 when it does not arrive."""
    try:
        return await request.read()
    except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError, web.RequestPayloadError):
        raise Refusal(422, "Failed to receive body") from None


def json_object(body: bytes, otherwise: str = "") -> dict[str, Any]:
    """The JSON object in a body. Raises: Refusal 400 with the text `otherwise`."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise Refusal(400, otherwise)
    return document
