"""Routes for tests, apart from Core's API and closed unless enabled: live keys, throttled models and the clock."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from task.local_core.core import CORE
from task.local_core.responses import json_response


def hook_routes() -> list[web.RouteDef]:
    return [
        web.get("/_test/keys", _list_keys),
        web.post("/_test/clock", _advance),
        web.post("/_test/faults", _throttle),
    ]


async def _list_keys(request: web.Request) -> web.Response:
    live = [{**asdict(key), "initiator": key.initiator.owner} for key in request.app[CORE].keys.live()]
    return json_response(request, live)


async def _advance(request: web.Request) -> web.Response:
    request.app[CORE].clock.advance((await request.json())["advance"])
    return json_response(request, {})


async def _throttle(request: web.Request) -> web.Response:
    # Refuse later calls of a model with this `Retry-After`; without one they are let through again
    fault, throttled = await request.json(), request.app[CORE].throttled
    throttled.pop(fault["deployment"], None)
    if "throttle" in fault:
        throttled[fault["deployment"]] = fault["throttle"]
    return json_response(request, {})
