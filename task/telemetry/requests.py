"""The request that the current task works for: its id, and the trace that it is part of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from secrets import token_hex

REQUEST_ID = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Source: W3C Trace Context; zeros and the version ff are not valid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The id of a request, the caller's own if it sent a plain one, and the id of the caller's trace, if it has one."""

    request_id: str
    trace_id: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> RequestInfo:
        """What the headers, named in lower case, say."""
        given = headers.get(REQUEST_ID, "")
        parent = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        return cls(given if _ID.fullmatch(given) else token_hex(8), parent[1] if parent else None)


_request: ContextVar[RequestInfo | None] = ContextVar("request", default=None)


def begin(info: RequestInfo) -> Token[RequestInfo | None]:
    """Let the current task, and those it starts, work for this request."""
    return _request.set(info)


def end(token: Token[RequestInfo | None]) -> None:
    """Let the current task work for what it worked for before."""
    _request.reset(token)


def current() -> RequestInfo | None:
    return _request.get()
