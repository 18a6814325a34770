"""What every request passes before it reaches a handler: host, origin, method, size, credentials; and CORS."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import HttpVersion11, web

from task.local.core.access import PRINCIPAL, Principal
from task.local.core.core import CORE, Core
from task.local.core.responses import PlainResponse, Refusal

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
OPEN_PATHS = frozenset({"/health", "/version"})
LOCAL_HOSTS = frozenset({"localhost", "core", "host.docker.internal"})
TOO_LARGE = "Request body is too large"
NO_CREDENTIALS = "At least API-KEY or Authorization header must be provided"
BOTH_CREDENTIALS = "Either API-KEY or Authorization header must be provided but not both"
UNKNOWN_KEY = "Unknown api key"
BAD_AUTHORIZATION = "Bad Authorization header"


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Checks requests in Core's order.

    Local Core listens where a browser can reach it, so a page of a foreign site must neither read nor write through
    it, and a name that was rebound to loopback must not open it.
    """
    started = time.monotonic()
    try:
        response = await _admit(request, handler)
    except Refusal as refusal:
        response = refusal.response(typed=not request.app[CORE].core025)
    except web.HTTPRequestEntityTooLarge:
        response = PlainResponse(413, TOO_LARGE)
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "(no route)"
    logger.info("%s %s %d %.3f s", request.method, route, response.status, time.monotonic() - started)
    return response


async def add_cors(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every response carries (a response-prepare signal)."""
    if isinstance(response, PlainResponse):
        response.headers.popall("Content-Type", None)
    if not _origin_is_allowed(request):
        return
    response.headers.setdefault("Access-Control-Allow-Origin", "*")
    for requested, allowed in (("Method", "Methods"), ("Headers", "Headers")):
        value = request.headers.get(f"Access-Control-Request-{requested}")
        if value is not None:
            response.headers[f"Access-Control-Allow-{allowed}"] = value


async def _admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    core = request.app[CORE]
    if request.version != HttpVersion11:
        raise Refusal(505)
    host = _hostname(f"//{request.headers.get('Host', '')}")
    if host not in LOCAL_HOSTS | core.settings.allowed_hosts and not is_loopback(host):
        raise Refusal(403, "Host is not allowed")
    if not _origin_is_allowed(request):
        raise Refusal(403, "Origin is not allowed")
    if request.method not in METHODS:
        raise Refusal(405)
    if request.method == "OPTIONS":
        return PlainResponse(200, headers={"Access-Control-Max-Age": "86400"})
    multipart = request.content_type.startswith("multipart/")
    if (request.content_length or 0) > (core.settings.max_upload if multipart else core.settings.max_body):
        raise Refusal(413, TOO_LARGE)
    missing = request.method == "HEAD" or request.match_info.http_exception is not None
    if request.path in OPEN_PATHS and not missing:
        return await handler(request)
    request[PRINCIPAL] = _principal_of(core, request.headers)
    if missing:  # only a caller with a key learns which routes there are
        raise Refusal(502, "No route")
    return await handler(request)


def _origin_is_allowed(request: web.Request) -> bool:
    origin = request.headers.get("Origin")
    if origin is None or origin in request.app[CORE].settings.allowed_origins:
        return True
    host = _hostname(origin)
    return host == "localhost" or is_loopback(host)


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


def _principal_of(core: Core, headers: Mapping[str, str]) -> Principal:
    key = headers.get("Api-Key", "")
    authorization = headers.get("Authorization")
    if not key and authorization is None:
        raise Refusal(401, NO_CREDENTIALS)
    scheme, _, value = (authorization or "").strip().partition(" ")
    bearer = value.strip() if scheme.lower() == "bearer" else scheme
    if key and bearer and bearer != key:
        raise Refusal(400, BOTH_CREDENTIALS)
    principal = _by_token(bearer) if core.settings.unsigned_tokens else None
    if principal is None and (key or not core.core025):  # only today's Core accepts a key as a bearer value
        principal = _by_key(core, key or bearer)
    if principal is None:
        raise Refusal(401, UNKNOWN_KEY if key else BAD_AUTHORIZATION)
    return principal


def _by_key(core: Core, value: str) -> Principal | None:
    key = core.keys.find(value)
    if key is not None:
        return key.principal
    for known, entry in core.config.keys.items():
        if hmac.compare_digest(known.encode(), value.encode()):
            return Principal(owner=f"Keys/{entry.project}/", roles=entry.all_roles, project=entry.project)
    return None


def _by_token(token: str) -> Principal | None:
    # A test's unsigned token stands for its user; no other token counts, since local Core has no identity provider.
    try:
        header, payload, signature = token.split(".")
        unsigned = not signature and str(_decoded(header).get("alg", "")).lower() == "none"
        claims = _decoded(payload) if unsigned else {}
    except ValueError:
        return None
    if not isinstance(subject := claims.get("sub"), str) or not subject:
        return None
    roles = claims.get("roles")
    named = tuple(str(role) for role in roles) if isinstance(roles, list) else ()
    return Principal(owner=f"Users/{subject}/", roles=named, claims=claims)


def _decoded(part: str) -> dict[str, Any]:
    document = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return document if isinstance(document, dict) else {}
