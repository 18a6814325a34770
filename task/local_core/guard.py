"""What every request passes before it reaches a handler: host, origin, method, size, credentials; and CORS."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Middleware

from task.local_core.callers import IDENTITY, Identity, Keys
from task.local_core.config import CoreConfig
from task.local_core.responses import PlainResponse, Refusal

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
METHODS_025 = METHODS - {"PATCH"}
OPEN_PATHS = frozenset({"/health", "/version"})
LOCAL_HOSTS = frozenset({"localhost", "core", "host.docker.internal"})
TOO_LARGE = "Request body is too large"
NO_CREDENTIALS = "At least API-KEY or Authorization header must be provided"
BOTH_CREDENTIALS = "Either API-KEY or Authorization header must be provided but not both"
UNKNOWN_KEY = "Unknown api key"
BAD_AUTHORIZATION = "Bad Authorization header"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Largest request bodies in bytes: file uploads (multipart) and everything else."""

    upload: int = 512 * 2**20
    other: int = 64 * 2**20


class Authenticator:
    """Identifies the caller by a request's credentials.

    `unsigned_tokens` accepts test tokens (`alg: none`); without it no token is accepted, since local Core has no
    identity provider. `bearer_keys` accepts a key as a bearer value, as today's Core does.
    """

    def __init__(
        self,
        config: Callable[[], CoreConfig],
        keys: Keys,
        *,
        unsigned_tokens: bool = False,
        bearer_keys: bool = True,
    ) -> None:
        self._config = config
        self._keys = keys
        self._unsigned_tokens = unsigned_tokens
        self._bearer_keys = bearer_keys

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """The caller. Raises: Refusal with Core's 400 or 401."""
        key = headers.get("Api-Key", "")
        authorization = headers.get("Authorization")
        if not key and authorization is None:
            raise Refusal(401, NO_CREDENTIALS)
        bearer = _bearer(authorization)
        if not key:
            return self._by_bearer(bearer)
        if bearer and bearer != key:
            raise Refusal(400, BOTH_CREDENTIALS)
        identity = (self._by_token(bearer) if bearer else None) or self._by_key(key)
        if identity is None:
            raise Refusal(401, UNKNOWN_KEY)
        return identity

    def _by_bearer(self, bearer: str) -> Identity:
        identity = self._by_token(bearer)
        if identity is None and self._bearer_keys:
            identity = self._by_key(bearer)
        if identity is None:
            raise Refusal(401, BAD_AUTHORIZATION)
        return identity

    def _by_key(self, value: str) -> Identity | None:
        key = self._keys.find(value)
        if key is not None:
            return key.identity
        for known, entry in self._config().keys.items():
            if hmac.compare_digest(known.encode(), value.encode()):
                return Identity(owner=f"Keys/{entry.project}/", roles=entry.all_roles, project=entry.project)
        return None

    def _by_token(self, token: str) -> Identity | None:
        if not self._unsigned_tokens:
            return None
        claims = _unsigned_claims(token)
        if claims is None or not isinstance(subject := claims.get("sub"), str) or not subject:
            return None
        roles = claims.get("roles")
        named = tuple(str(role) for role in roles) if isinstance(roles, list) else ()
        return Identity(owner=f"Users/{subject}/", roles=named, claims=claims)


def _bearer(authorization: str | None) -> str:
    scheme, _, value = (authorization or "").strip().partition(" ")
    return value.strip() if scheme.lower() == "bearer" else scheme


def _unsigned_claims(token: str) -> dict[str, Any] | None:
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        return None
    header, claims = _decoded(parts[0]), _decoded(parts[1])
    if header is None or str(header.get("alg", "")).lower() != "none":
        return None
    return claims


def _decoded(part: str) -> dict[str, Any] | None:
    try:
        document = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return None
    return document if isinstance(document, dict) else None


class Guard:
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
            response = await self._respond(request, handler)
            seconds = time.monotonic() - started
            logger.info("%s %s %d %.3f s", request.method, _route_name(request), response.status, seconds)
            return response

        return check

    async def add_cors(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers that every response carries (a response-prepare signal)."""
        if isinstance(response, PlainResponse):
            response.headers.popall("Content-Type", None)
        if not self._origin_is_allowed(request):
            return
        response.headers.setdefault("Access-Control-Allow-Origin", "*")
        for requested, allowed in (("Method", "Methods"), ("Headers", "Headers")):
            value = request.headers.get(f"Access-Control-Request-{requested}")
            if value is not None:
                response.headers[f"Access-Control-Allow-{allowed}"] = value

    async def _respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await self._admit(request, handler)
        except Refusal as refusal:
            return refusal.response(typed=self._typed_errors)
        except web.HTTPRequestEntityTooLarge:
            return PlainResponse(413, TOO_LARGE)

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._check_transport(request)
        if request.method == "OPTIONS":
            return PlainResponse(200, headers={"Access-Control-Max-Age": "86400"})
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
