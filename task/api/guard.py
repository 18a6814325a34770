"""Before every route of the process: the request's id, which hosts, origins and bodies are accepted, and who calls."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from task.api.failures import FILE_TOO_LARGE, Failure, failure_of, refused
from task.api.identity import Identity, Mode
from task.conversation.inputs import CALLER
from task.errors import AgentError
from task.llm.transport import is_loopback
from task.telemetry.operations import REQUEST, REQUEST_ID, RequestInfo

if TYPE_CHECKING:
    from task.telemetry.metrics import PrometheusMetrics

CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
UPLOADS = frozenset({"/v1/files", "/transcription"})
APPLICATION_SCHEMA = "/openai/deployments/general-purpose-agent/application-schema"
PROBES = frozenset({"/health", "/ready", "/metrics"})
FORM_BYTES = 64 * 2**10  # what a form adds to the file it carries
DEEPEST = 100  # brackets within each other; what reads, copies or writes JSON recursively fails at a few hundred
MOST_VALUES = 30_000  # of JSON; to read and check more of them would hold the event loop
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
SWALLOWED = frozenset({429, 502, 503, 504})  # DIAL Core answers these itself, without the body
# Of all that is answered only the page is shown by browsers, and it brings a policy of its own.
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_DOORS = {"openai": "dial", "session": "sessions"} | {
    name: name
    for name in ("approvals", "chat", "health", "metrics", "ready", "runs", "sessions", "sign-ins", "traces", "v1")
}
STOPPING = "The agent is stopping, and has not answered in time. Send the request again."
LEFT = 499  # what proxies note for a client that left before an answer started
_ALLOWED = "Authorization, Api-Key, Content-Type, Last-Event-ID"
_EXPOSED = "Retry-After, X-Run-Id, X-Trace-Id"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What an operator sets of the HTTP door.

    In the mode `open` only this machine may call, by one of its own names or one of `hosts`. `behind_core`: DIAL Core
    authenticates the callers of the DIAL route, whose bodies are at most `dial_bytes` long; any machine may call it by
    any name. `request_keys`: where it does not, it is asked whose per-request key came. `core_key` is the agent's own
    key at DIAL Core, for the modes in which callers have none. `steps` limits the requests with tools of one run,
    `detach_seconds` how long a run continues without a listener.
    """

    mode: Mode
    core_key: str
    hosts: Collection[str]
    origins: Collection[str]
    body_bytes: int
    upload_bytes: int
    behind_core: bool
    request_keys: bool
    dial_bytes: int
    requests_per_minute: int
    runs_per_caller: int
    ui: bool
    steps: int
    detach_seconds: float
    heartbeat_seconds: float
    titles: str
    transcription: str
    editor_origins: Collection[str]
    editor_core: str


@dataclass(frozen=True, slots=True)
class Guard:
    """Refuses requests that a user cannot have intended, and adds to every answer the security headers for browsers and
    the id that is in the log's lines about it.

    At the DIAL route it also finds the caller, unless Core does.
    """

    app: ASGIApp
    options: HttpOptions
    identity: Identity
    metrics: PrometheusMetrics | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        info, door = RequestInfo.of(headers), _DOORS.get(scope["path"].lstrip("/").partition("/")[0], "other")
        exchange, token = _Exchange(receive, send, info.request_id), REQUEST.set(info)
        if self.metrics is not None:
            self.metrics.http_started(door)
        try:
            await self._answer(scope, headers, exchange)
        finally:
            if self.metrics is not None:
                self.metrics.http_ended(door, exchange.status)
            REQUEST.reset(token)

    async def _answer(self, scope: Scope, headers: Headers, exchange: _Exchange) -> None:
        path, receive, send = scope["path"], exchange.receive, exchange.send
        origin, is_dial = headers.get("origin"), path == "/openai" or path.startswith("/openai/")
        known = origin is not None and origin in self.options.origins
        limit = self.options.dial_bytes if is_dial else self.options.body_bytes
        limit = self.options.upload_bytes + FORM_BYTES if path in UPLOADS else limit
        exchange.origin, exchange.limit, exchange.is_upload = origin if known else None, limit, path in UPLOADS
        refusal = self._refusal(scope, headers, limit, known=known, is_dial=is_dial)
        if refusal is None and known and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            allowed = {
                "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE",
                # Any header, because each client library has some of its own.
                "Access-Control-Allow-Headers": headers.get("access-control-request-headers") or _ALLOWED,
                "Access-Control-Max-Age": "600",
            }
            await Response(status_code=204, headers=allowed)(scope, receive, send)
            return
        is_for_all = self.options.behind_core or path == APPLICATION_SCHEMA  # Core reads it for no user, without a key
        if refusal is None and is_dial and not is_for_all:
            refusal = await self._identified(scope, headers)
        if refusal is None:
            # The application sees a caller who leaves in the middle; what it answers is not sent.
            with suppress(ClientDisconnect):
                await self.app(scope, receive, send)
            refusal, exchange.fault = exchange.fault, None
            if refusal is None and exchange.status == LEFT and not exchange.left:
                # The server ends what is in progress when it stops, and the SDK's middleware takes that for a caller
                # who has left: uvicorn would answer 500.
                refusal = refused(500 if is_dial else 503, STOPPING, "stopping", retry_after=1)
        if refusal is not None and exchange.status == LEFT:
            await refusal.response()(scope, receive, send)

    async def _identified(self, scope: Scope, headers: Headers) -> Failure | None:
        try:
            if self.options.request_keys:
                scope[CALLER] = await self.identity.user_of_request(headers)
                return None
            caller = await self.identity.caller(headers)
            # DIAL Core on this machine calls with a key that reads the files of the user it calls for.
            key = headers.get("api-key") if self.options.mode == "open" else None
            scope[CALLER] = replace(caller, core_key=key) if key else caller
        except AgentError as error:
            failure = failure_of(error)
            failure.status = 500 if failure.status in SWALLOWED else failure.status
            return failure
        return None

    def _refusal(self, scope: Scope, headers: Headers, limit: int, *, known: bool, is_dial: bool) -> Failure | None:
        method, path, host = scope["method"], scope["path"], headers.get("host", "")
        if self.options.mode == "open" and path not in PROBES and not (self.options.behind_core and is_dial):
            client = scope.get("client")
            try:
                name = urlsplit(f"//{host}").hostname or ""
            except ValueError:
                name = ""
            is_own_name = is_loopback(name) or name in self.options.hosts
            if not (is_own_name and (client is None or is_loopback(client[0]))):
                text = (
                    "In the mode `open` the agent answers this machine only, by its own name. An operator can choose "
                    "another one: AGENT_HTTP__MODE=keys, or =dial for callers with a key of DIAL Core."
                )
                return refused(403, text, "not_local")
        if method in CHANGING and not known:
            origin = headers.get("origin")
            site = headers.get("sec-fetch-site") in ("cross-site", "same-site")
            if site if origin is None else urlsplit(origin).netloc.lower() != host.lower():
                text = "Another web page may not do this. An operator can allow its origin: AGENT_HTTP__ORIGINS."
                return refused(403, text, "foreign_origin")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            return _too_large(limit, is_upload=path in UPLOADS)
        if method in CHANGING and (length not in ("", "0") or "transfer-encoding" in headers):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            wanted = "multipart/form-data" if path in UPLOADS else "application/json"
            if kind != wanted:
                text = f"The body must be {wanted}, not {kind or 'of no named type'}."
                return refused(415, text, "unsupported_media_type")
        return None


class _Exchange:
    """A body as it arrives, and what is sent back. Where the body is larger than `limit` or nested too deeply, it
    breaks off with `fault`, and no answer starts any more."""

    def __init__(self, receive: Receive, send: Send, request_id: str = "") -> None:
        self._receive, self._send, self._request_id = receive, send, request_id
        self._length = self._depth = self._values = 0
        self._in_text, self._cut = False, b""
        self.origin: str | None = None  # that may read the answer
        self.limit, self.is_upload, self.status = 0, False, LEFT
        self.left = False  # the caller
        self.fault: Failure | None = None

    async def send(self, message: Message) -> None:
        if self.status == LEFT and self.fault is not None:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.setdefault("Content-Security-Policy", POLICY)
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Referrer-Policy", "no-referrer")
            headers.setdefault("Cache-Control", "no-store")
            headers[REQUEST_ID] = self._request_id
            if self.origin is not None:
                headers["Access-Control-Allow-Origin"] = self.origin
                headers["Access-Control-Expose-Headers"] = _EXPOSED
                headers.add_vary_header("Origin")
        await self._send(message)

    async def receive(self) -> Message:
        message = await self._receive()
        self.left = self.left or message["type"] == "http.disconnect"
        piece = message.get("body", b"")
        self._length += len(piece)
        if self._length > self.limit:
            self.fault = _too_large(self.limit, is_upload=self.is_upload)
        elif not self.is_upload and b"\0" in piece:  # UTF-16 or UTF-32: their brackets are not countable by bytes
            self.fault = refused(400, "The body is not valid JSON: it must be UTF-8.", "invalid_json")
        elif not self.is_upload and self._is_too_deep(piece):
            self.fault = refused(
                400, "The body is JSON that is nested too deeply or has too many values.", "invalid_json"
            )
        return message if self.fault is None else {"type": "http.disconnect"}

    def _is_too_deep(self, piece: bytes) -> bool:
        piece = self._cut + piece
        self._cut = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        if b"\\" in piece:  # looking for two characters takes ten times as long
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')  # every other one is in a text
        outside = b"".join(parts[self._in_text :: 2])
        self._values += outside.count(b",") + outside.count(b"{")
        self._in_text ^= len(parts) % 2 == 0
        for sign in outside.translate(None, _NO_BRACKETS):
            self._depth += 1 if sign in b"[{" else -1
            if self._depth > DEEPEST:
                return True
        return self._values > MOST_VALUES


def _too_large(limit: int, *, is_upload: bool) -> Failure:
    if is_upload:
        return refused(413, FILE_TOO_LARGE.format(limit=limit - FORM_BYTES), "file_too_large")
    text = f"The body is larger than {limit:,} bytes. Upload large files to /v1/files and name their ids."
    return refused(413, text, "body_too_large")
