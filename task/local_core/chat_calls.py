"""What DIAL Chat asks of Core beside its data: nothing is shared or published here, and the answers say so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from aiohttp import web

from task.local_core.config import CoreConfig, may_use
from task.local_core.identity import IDENTITY
from task.local_core.refusal import PlainAnswer, Refusal, json_answer

HEARTBEAT_SECONDS = 15.0
CHANNEL_HEADER = "X-DIAL-CLIENT-CHANNEL-ID"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_EMPTY: dict[str, Any] = {
    "resource/share/list": {"resources": []},
    "publication/list": {"publications": []},
    "publication/rule/list": {"rules": {}},
    "publication/resource/list": [],
    "notification/list": {"notifications": []},
}
_NOTHING_TO_DO = ("resource/share/discard", "resource/share/revoke", "notification/delete")
_REFUSED = {
    "resource/share/create": "Local Core does not share resources",
    **dict.fromkeys(
        [f"publication/{verb}" for verb in ("create", "delete", "approve", "reject", "update")],
        "Local Core does not publish resources",
    ),
}


@dataclass(frozen=True, slots=True)
class ChatCalls:
    """The routes; client channels, subscriptions and consent exist in today's Core only."""

    config: Callable[[], CoreConfig]
    core025: bool = False

    def register(self, app: web.Application) -> None:
        add_get, add_post = app.router.add_get, app.router.add_post
        for name, answer in _EMPTY.items():
            add_post(f"/v1/ops/{name}", _answered(answer, shared=name.startswith("resource/share/")))
        for name in _NOTHING_TO_DO:
            add_post(f"/v1/ops/{name}", _answered(None, shared=name.startswith("resource/share/")))
        for name, reason in _REFUSED.items():
            add_post(f"/v1/ops/{name}", _refused(400, reason))
        add_post("/v1/ops/publication/get", _refused(404, "Not found"))
        add_get("/v1/invitations", _answered({"invitations": []}, shared=True), allow_head=False)
        add_get("/v1/invitations/{id}", _refused(404, "Not found"), allow_head=False)
        app.router.add_delete("/v1/invitations/{id}", _refused(404, "Not found"))
        add_get("/v1/application_type_schemas/schemas", _answered([]), allow_head=False)
        add_get("/v1/application_type_schemas/schema", _refused(404, "Not found"), allow_head=False)
        if not self.core025:
            self._register_current(app)

    def _register_current(self, app: web.Application) -> None:
        add_post = app.router.add_post
        add_post("/v1/ops/client-channel/subscribe", _channel)
        add_post("/v1/ops/client-channel/unsubscribe", _answered(None))
        add_post("/v1/ops/client-channel/report", _answered(None))
        add_post("/v1/ops/resource/subscribe", _channel)
        app.router.add_get("/v1/consent/{id:.+}", self.consent, allow_head=False)
        add_post("/v1/consent/{id:.+}", self.consent)

    async def consent(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        deployment = self.config().deployment(name)
        if deployment is None:
            raise Refusal(404)
        if not may_use(request[IDENTITY].roles, deployment.user_roles):
            raise Refusal(403)
        required = deployment.features.consent_required
        return json_answer(request, {"consent": {name: {"consentRequired": required}}, "accepted": True})


def _answered(document: Any, *, shared: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        if shared and request[IDENTITY].key is not None:
            raise Refusal(403, "An application cannot share")
        return PlainAnswer(200) if document is None else json_answer(request, document)

    return handler


def _refused(status: int, reason: str) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        raise Refusal(status, reason)

    return handler


async def _channel(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", CHANNEL_HEADER: uuid4().hex})
    await answer.prepare(request)
    # Nothing is ever announced; the comments keep the connection open until the client leaves.
    while True:
        await answer.write(b": heartbeat\n\n")
        await asyncio.sleep(HEARTBEAT_SECONDS)
