"""What DIAL Chat asks of Core besides its data: nothing is shared or published here, and the responses say so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from aiohttp import web

from task.local_core.callers import IDENTITY
from task.local_core.core import deployment_of
from task.local_core.responses import PlainResponse, Refusal, json_response

HEARTBEAT_SECONDS = 15.0
CHANNEL_HEADER = "X-DIAL-CLIENT-CHANNEL-ID"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_EMPTY: dict[str, Any] = {
    "resource/share/list": {"resources": []},
    "publication/list": {"publications": []},
    "publication/rule/list": {"rules": {}},
    "publication/resource/list": [],
    "notification/list": {"notifications": []},
    "resource/share/discard": None,
    "resource/share/revoke": None,
    "notification/delete": None,
}
_REFUSED = {
    "resource/share/create": "Local Core does not share resources",
    **dict.fromkeys(
        [f"publication/{verb}" for verb in ("create", "delete", "approve", "reject", "update")],
        "Local Core does not publish resources",
    ),
}


def chat_routes(*, core025: bool) -> list[web.RouteDef]:
    """Client channels, subscriptions and consent exist in today's Core only."""
    not_found = _refused(404, "Not found")
    routes = [
        *(
            web.post(f"/v1/ops/{name}", _answered(document, shared=name.startswith("resource/share/")))
            for name, document in _EMPTY.items()
        ),
        *(web.post(f"/v1/ops/{name}", _refused(400, reason)) for name, reason in _REFUSED.items()),
        web.post("/v1/ops/publication/get", not_found),
        web.get("/v1/invitations", _answered({"invitations": []}, shared=True), allow_head=False),
        web.get("/v1/invitations/{id}", not_found, allow_head=False),
        web.delete("/v1/invitations/{id}", not_found),
        web.get("/v1/application_type_schemas/schemas", _answered([]), allow_head=False),
        web.get("/v1/application_type_schemas/schema", not_found, allow_head=False),
    ]
    if core025:
        return routes
    return [
        *routes,
        web.post("/v1/ops/client-channel/subscribe", _channel),
        web.post("/v1/ops/client-channel/unsubscribe", _answered(None)),
        web.post("/v1/ops/client-channel/report", _answered(None)),
        web.post("/v1/ops/resource/subscribe", _channel),
        web.get("/v1/consent/{id:.+}", _consent, allow_head=False),
        web.post("/v1/consent/{id:.+}", _consent),
    ]


def _answered(document: Any, *, shared: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        if shared and request[IDENTITY].key is not None:
            raise Refusal(403, "An application cannot share")
        return PlainResponse(200) if document is None else json_response(request, document)

    return handler


def _refused(status: int, reason: str) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        raise Refusal(status, reason)

    return handler


async def _consent(request: web.Request) -> web.Response:
    required = deployment_of(request).features.consent_required
    name = request.match_info["id"]
    return json_response(request, {"consent": {name: {"consentRequired": required}}, "accepted": True})


async def _channel(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", CHANNEL_HEADER: uuid4().hex})
    await response.prepare(request)
    # Nothing is ever announced; the comments keep the connection open until the client leaves.
    while True:
        await response.write(b": heartbeat\n\n")
        await asyncio.sleep(HEARTBEAT_SECONDS)
