"""Calls that go to endpoints of the configuration: features of deployments (rating, tokenizing, …) and routes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit, urlunsplit

from aiohttp import web

from task.local.core.callers import IDENTITY
from task.local.core.config import CoreConfig, Route
from task.local.core.core import CORE, deployment_of
from task.local.core.relay import ResponseHooks, Target, passed_headers, read_body, with_query
from task.local.core.responses import PlainResponse, Refusal, json_response

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def feature_routes() -> list[web.RouteDef]:
    rate = _feature("rate_endpoint", optional=True)
    configuration = _feature("configuration_endpoint", optional=True)
    return [
        web.get("/v1/deployments/{id:.+}/configuration", configuration, allow_head=False),
        web.get("/v1/deployments/{id:.+}/limits", _limits, allow_head=False),
        web.post("/v1/deployments/{id:.+}/tokenize", _feature("tokenize_endpoint")),
        web.post("/v1/deployments/{id:.+}/truncate_prompt", _feature("truncate_prompt_endpoint")),
        web.post("/v1/{id:.+}/rate", rate),
    ]


def _feature(field: str, *, optional: bool = False) -> Handler:
    # A handler that passes calls to the endpoint the deployment declares in `field`; the query is not passed on
    async def handler(request: web.Request) -> web.StreamResponse:
        deployment = deployment_of(request)
        endpoint: str | None = getattr(deployment.features, field)
        if endpoint is None and optional:
            return PlainResponse(200)
        if endpoint is None:
            raise Refusal(403, "Forbidden deployment")
        headers = passed_headers(request.headers, authorization=deployment.forward_auth_token)
        return await _forward(
            request, deployment.name, [Target(endpoint, headers)], Refusal(502, "connection error to origin")
        )

    return handler


async def _limits(request: web.Request) -> web.Response:
    config = request.app[CORE].config
    limit = config.limit(deployment_of(request).name, request[IDENTITY].roles)
    totals = {
        "minuteTokenStats": limit.minute,
        "dayTokenStats": limit.day,
        "weekTokenStats": limit.week,
        "monthTokenStats": limit.month,
        "hourRequestStats": limit.request_hour,
        "dayRequestStats": limit.request_day,
    }
    return json_response(request, {name: {"total": total, "used": 0} for name, total in totals.items()})


async def answer_by_route(request: web.Request) -> web.StreamResponse:
    """The handler of every request that no other handler takes: the configuration's routes, else `No route`."""
    found = _route_for(request.app[CORE].config, request)
    if found is None:
        raise Refusal(502, "No route")
    name, route = found
    if route.user_roles and not request[IDENTITY].may_use(route.user_roles):
        raise Refusal(403, "Forbidden route")
    if route.response is not None:
        return PlainResponse(route.response.status, route.response.body)
    upstreams = sorted((one for one in route.upstreams if one.weight > 0), key=lambda one: one.tier)
    headers = passed_headers(request.headers, authorization=False)
    targets = [Target(_address(request, route, one.endpoint), headers) for one in upstreams]
    return await _forward(request, name, targets, Refusal(502, "No route"))


def _route_for(config: CoreConfig, request: web.Request) -> tuple[str, Route] | None:
    for name, route in sorted(config.routes.items(), key=lambda item: item[1].order):
        if route.methods and request.method not in route.methods:
            continue
        if any(re.fullmatch(path, request.path) for path in route.paths):
            return name, route
    return None


def _address(request: web.Request, route: Route, endpoint: str) -> str:
    if route.rewrite_path:
        endpoint = urlunsplit(urlsplit(endpoint)._replace(path=request.rel_url.raw_path))
    return with_query(endpoint, request.rel_url.raw_query_string)


async def _forward(request: web.Request, name: str, targets: list[Target], broken: Refusal) -> web.StreamResponse:
    body, core = await read_body(request), request.app[CORE]
    with core.keys.created(request, name) as key:
        for target in targets:
            target.headers["API-KEY"] = key.value
        return await core.relay.send(
            request, targets, body, ResponseHooks(broken=broken, ended=lambda _: core.keys.end(key))
        )
