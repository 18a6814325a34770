"""Give each request of the process its id, before everything else, and count it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from task.telemetry.requests import REQUEST_ID, RequestInfo, begin, end

if TYPE_CHECKING:
    from task.telemetry.metrics import PrometheusMetrics

_DOORS = {"openai": "dial", "session": "sessions"} | {
    name: name for name in ("approvals", "chat", "health", "metrics", "ready", "runs", "sessions", "traces", "v1")
}
LEFT = 499  # what proxies note for a client that left before an answer started


def door_of(path: str) -> str:
    """The part of the product that answers a path, of which there are few."""
    return _DOORS.get(path.lstrip("/").partition("/")[0], "other")


@dataclass(frozen=True, slots=True)
class Observed:
    """An application whose answers carry the id that is in the log's lines about them."""

    app: ASGIApp
    metrics: PrometheusMetrics | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        info = RequestInfo.of(Headers(scope=scope))
        door, token = door_of(scope["path"]), begin(info)
        status = LEFT

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start":
                nonlocal status
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID.encode(), info.request_id.encode())]
            await send(message)

        if self.metrics is not None:
            self.metrics.http_started(door)
        try:
            await self.app(scope, receive, answering)
        finally:
            if self.metrics is not None:
                self.metrics.http_ended(door, status)
            end(token)
