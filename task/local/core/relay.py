"""Pass a request on to an application, model or MCP server, and its response back as it arrives."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from task.llm.transport import KEEP_ALIVE_SECONDS, sendable
from task.local.core.responses import Refusal
from task.local.core.sharing import ResponseWatch

logger = logging.getLogger(__name__)

IDLE_SECONDS = 300.0
CONNECT_SECONDS = 10.0
UPSTREAM_ATTEMPTS = {"X-UPSTREAM-ATTEMPTS": "1"}

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length"})
_NOT_PASSED = _HOP_BY_HOP | {"host", "proxy-authenticate", "proxy-authorization", "accept-encoding"}
# What these begin is Core's own word to an application: no caller may say it.
_FOR_CORE = (
    "api-key",
    "traceparent",
    "tracestate",
    "x-dial-application-",
    "x-dial-deployment-",
    "x-dial-override-name",
)
_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class ResponseHooks:
    """What happens to a response on its way: which statuses are kept from the caller, what reads along (by content
    type), what replaces a whole body before it is passed on, and what is called when it has ended, before the caller
    sees that."""

    unreachable: Refusal = field(default_factory=lambda: Refusal(502, "connection error to origin"))
    broken: Refusal = field(default_factory=lambda: Refusal(502, "connection error to origin"))
    is_swallowed: Callable[[int], bool] = lambda _: False
    watch: Callable[[str], ResponseWatch | None] = lambda _: None
    rewrite: Callable[[bytes], bytes] | None = None
    ended: Callable[[int], None] = lambda _: None


class Relay:
    """The one pooled client towards applications and models; `close` ends it.

    An origin that is silent for `idle_seconds` is disconnected.
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def send(
        self, request: web.Request, url: str, headers: CIMultiDict[str], body: bytes, hooks: ResponseHooks
    ) -> web.StreamResponse:
        """The response of `url`. Raises: Refusal when there is none, or when its status is kept from the caller."""
        response: web.StreamResponse | None = None
        target = URL(url, encoded=True)
        try:
            async with self._session().request(
                request.method,
                target,
                headers=headers,
                data=sendable(body) if body else None,
                allow_redirects=False,
                skip_auto_headers=_AUTO_HEADERS,
            ) as origin:
                if hooks.is_swallowed(origin.status):
                    raise _swallowed(origin)
                passed = _end_to_end(origin.headers)
                response = web.StreamResponse(status=origin.status, reason=origin.reason, headers=passed)
                response.headers.update(UPSTREAM_ATTEMPTS)
                await response.prepare(request)
                await _pump(origin, response, hooks)
        except aiohttp.ClientConnectorError as error:
            logger.warning("nothing answers at %s (%s)", target.origin(), error.os_error.strerror)
            raise hooks.unreachable from None
        except (aiohttp.ClientError, TimeoutError):
            if response is None:
                raise hooks.broken from None
            if request.transport is not None:  # so that half a response does not look complete
                request.transport.close()
        return response

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=self._idle_seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._client


def passed_headers(headers: Mapping[str, str], *, authorization: bool) -> CIMultiDict[str]:
    """The caller's headers that an application may see, with a new span of the same trace."""
    unwanted = _FOR_CORE if authorization else (*_FOR_CORE, "authorization")
    found = _end_to_end(headers).items()
    passed = CIMultiDict((name, value) for name, value in found if not name.lower().startswith(unwanted))
    parts = headers.get("traceparent", "").split("-")
    if len(parts) >= 4 and len(parts[1]) == 32:
        passed["traceparent"] = f"{parts[0]}-{parts[1]}-{secrets.token_hex(8)}-{parts[3]}"
    else:
        passed["traceparent"] = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    return passed


def with_query(endpoint: str, query: str) -> str:
    """The endpoint with the caller's query string, byte for byte."""
    if not query:
        return endpoint
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _NOT_PASSED)


def _swallowed(origin: aiohttp.ClientResponse) -> Refusal:
    if origin.status != 429:
        return Refusal(502, "No route")
    retry_after = origin.headers.get("Retry-After")
    return Refusal(503, "Service is not available", headers={"Retry-After": retry_after} if retry_after else None)


async def _pump(origin: aiohttp.ClientResponse, response: web.StreamResponse, hooks: ResponseHooks) -> None:
    watch = hooks.watch(origin.headers.get("Content-Type", ""))
    if hooks.rewrite is not None:
        await response.write(hooks.rewrite(await origin.read()))
    async for data in origin.content.iter_any():
        # Rights first: the caller may read an attached file as soon as it sees its URL.
        if watch is not None:
            watch.feed(data)
        await response.write(data)
    if watch is not None:
        watch.finish()
    hooks.ended(origin.status)
    await response.write_eof()
