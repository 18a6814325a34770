"""What every request passes before it reaches a handler: protocol, host, origin, method, size, caller; and CORS."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Middleware

from task.local_core.auth import Authenticator
from task.local_core.identity import IDENTITY
from task.local_core.refusal import PlainAnswer, Refusal

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
METHODS_025 = METHODS - {"PATCH"}
OPEN_PATHS = frozenset({"/health", "/version"})
LOCAL_HOSTS = frozenset({"localhost", "core", "host.docker.internal"})
TOO_LARGE = "Request body is too large"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Largest request bodies in bytes: file uploads (multipart) and everything else."""

    upload: int = 512 * 2**20
    other: int = 64 * 2**20


class Doorkeeper:
    """Checks requests in Core's order. `hosts` and `origins` are allowed beside the loopback names.

    Local Core listens where a browser can reach it, so a page of a foreign site must neither read nor write through
    it, and a name that was rebound to loopback must not open it.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        fallback: Handler,
        *,
        hosts: frozenset[str] = frozenset(),
        origins: frozenset[str] = frozenset(),
        limits: BodyLimits | None = None,
        core025: bool = False,
    ) -> None:
        self._authenticator = authenticator
        self._fallback = fallback
        self._hosts = LOCAL_HOSTS | hosts
        self._origins = origins
        self._limits = limits or BodyLimits()
        self._methods = METHODS_025 if core025 else METHODS
        self._typed_errors = not core025

    def middleware(self) -> Middleware:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            started = time.monotonic()
            answer = await self._answer(request, handler)
            seconds = time.monotonic() - started
            logger.info("%s %s %d %.3f s", request.method, _route_name(request), answer.status, seconds)
            return answer

        return check

    async def add_cors(self, request: web.Request, response: web.StreamResponse) -> None:
        """Fills in the headers that every answer carries (a response-prepare signal)."""
        if isinstance(response, PlainAnswer):
            response.headers.popall("Content-Type", None)
        if not self._origin_is_allowed(request):
            return
        response.headers.setdefault("Access-Control-Allow-Origin", "*")
        for asked, allowed in (("Method", "Methods"), ("Headers", "Headers")):
            value = request.headers.get(f"Access-Control-Request-{asked}")
            if value is not None:
                response.headers[f"Access-Control-Allow-{allowed}"] = value

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await self._admit(request, handler)
        except Refusal as refusal:
            return refusal.answer(typed=self._typed_errors)
        except web.HTTPRequestEntityTooLarge:
            return PlainAnswer(413, TOO_LARGE)

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._check_transport(request)
        if request.method == "OPTIONS":
            return PlainAnswer(200, headers={"Access-Control-Max-Age": "86400"})
        self._check_size(request)
        missing = request.method == "HEAD" or request.match_info.http_exception is not None
        if request.path in OPEN_PATHS and not missing:
            return await handler(request)
        request[IDENTITY] = self._authenticator.identify(request.headers)
        return await (self._fallback if missing else handler)(request)

    def _check_transport(self, request: web.Request) -> None:
        if request.version != HttpVersion11:
            raise Refusal(505)
        if not self._host_is_allowed(request.headers.get("Host", "")):
            raise Refusal(403, "Host is not allowed")
        if not self._origin_is_allowed(request):
            raise Refusal(403, "Origin is not allowed")
        if request.method not in self._methods:
            raise Refusal(405)

    def _check_size(self, request: web.Request) -> None:
        multipart = request.content_type.startswith("multipart/")
        limit = self._limits.upload if multipart else self._limits.other
        if (request.content_length or 0) > limit:
            raise Refusal(413, TOO_LARGE)

    def _host_is_allowed(self, netloc: str) -> bool:
        host = _hostname(f"//{netloc}")
        return host in self._hosts or is_loopback(host)

    def _origin_is_allowed(self, request: web.Request) -> bool:
        origin = request.headers.get("Origin")
        if origin is None or origin in self._origins:
            return True
        host = _hostname(origin)
        return host == "localhost" or is_loopback(host)


def _route_name(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "(no route)"


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address; names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
