"""The guard before every route of the HTTP door: which hosts, origins, content types and body sizes are accepted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from task.api.edge.failures import Failure

CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
UPLOADS = "/v1/files"
FORM_BYTES = 64 * 2**10  # what a form adds to the file it carries
# Of all that is answered only the page is shown by browsers, and it brings a policy of its own.
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_ALLOWED = "Authorization, Api-Key, Content-Type, Last-Event-ID"
_EXPOSED = "Retry-After, X-Run-Id, X-Trace-Id"


@dataclass(frozen=True, slots=True)
class Rules:
    """`local_only`: only this machine may call, by one of its own names or one of `hosts`."""

    local_only: bool
    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    body_bytes: int = 8 * 2**20
    upload_bytes: int = 50 * 2**20


class _TooLarge(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Guard:
    """Refuses requests that a person cannot have intended, and adds the security headers for browsers."""

    app: ASGIApp
    rules: Rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        known = origin is not None and origin in self.rules.origins
        sending = _Sending(send, origin if known else None)
        refusal = self._refusal(scope, headers, known)
        if refusal is not None:
            await refusal.response()(scope, receive, sending)
        elif known and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await Response(status_code=204, headers=_preflight(headers))(scope, receive, sending)
        else:
            await self._passed(scope, receive, sending)

    async def _passed(self, scope: Scope, receive: Receive, send: _Sending) -> None:
        limit = self._limit(scope["path"])
        limited = _Limited(receive, limit)

        async def answering(message: Message) -> None:
            if send.started or not limited.exceeded:
                await send(message)

        # The framework answers a body that breaks off with a text of its own, so the exception may not arrive here.
        with suppress(_TooLarge):
            await self.app(scope, limited, answering)
        if limited.exceeded and not send.started:
            await _too_large(limit).response()(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers, known: bool) -> Failure | None:
        method, host = scope["method"], headers.get("host", "")
        if self.rules.local_only and not (_is_near(scope) and self._is_own_name(host)):
            text = (
                "In the mode `open` the HTTP API answers this machine only, by its own name. An operator can choose "
                "another one: AGENT_HTTP__MODE=keys."
            )
            return Failure(403, text, "not_local")
        if method in CHANGING and not known and _is_foreign(headers, host):
            text = "Another web page may not do this. An operator can allow its origin: AGENT_HTTP__ORIGINS."
            return Failure(403, text, "foreign_origin")
        length = headers.get("content-length", "")
        limit = self._limit(scope["path"])
        if length.isdigit() and int(length) > limit:
            return _too_large(limit)
        if method in CHANGING and (length not in ("", "0") or "transfer-encoding" in headers):
            return _content_fault(scope["path"], headers)
        return None

    def _limit(self, path: str) -> int:
        return self.rules.upload_bytes + FORM_BYTES if path == UPLOADS else self.rules.body_bytes

    def _is_own_name(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name == "localhost" or _is_loopback(name) or name in self.rules.hosts


class _Sending:
    def __init__(self, send: Send, origin: str | None) -> None:
        self._send, self._origin, self.started = send, origin, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            headers.setdefault("Content-Security-Policy", POLICY)
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Referrer-Policy", "no-referrer")
            headers.setdefault("Cache-Control", "no-store")
            if self._origin is not None:
                headers["Access-Control-Allow-Origin"] = self._origin
                headers["Access-Control-Expose-Headers"] = _EXPOSED
                headers.add_vary_header("Origin")
        await self._send(message)


class _Limited:
    """A body of at most `limit` bytes; reading more of a larger one raises."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._left = receive, limit

    @property
    def exceeded(self) -> bool:
        return self._left < 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self.exceeded:
            raise _TooLarge
        return message


def _too_large(limit: int) -> Failure:
    text = f"The body is larger than {limit:,} bytes. Upload large files to /v1/files and name their ids."
    return Failure(413, text, "body_too_large")


def _content_fault(path: str, headers: Headers) -> Failure | None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    wanted = "multipart/form-data" if path == UPLOADS else "application/json"
    if kind == wanted:
        return None
    return Failure(415, f"The body must be {wanted}, not {kind or 'of no named type'}.", "unsupported_media_type")


def _is_foreign(headers: Headers, host: str) -> bool:
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site") in ("cross-site", "same-site")
    return urlsplit(origin).netloc.lower() != host.lower()


def _is_near(scope: Scope) -> bool:
    client = scope.get("client")
    return client is None or _is_loopback(client[0])


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _preflight(asked: Headers) -> Mapping[str, str]:
    return {
        "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE",
        # Any header, because each client library has some of its own.
        "Access-Control-Allow-Headers": asked.get("access-control-request-headers") or _ALLOWED,
        "Access-Control-Max-Age": "600",
    }
