"""Paths outside Core's own API: the configuration's routes, and `No route`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from aiohttp import web

from task.local_core.config import CoreConfig, Route
from task.local_core.identity import IDENTITY, PerRequestKey
from task.local_core.keys import Keys
from task.local_core.refusal import PlainAnswer, Refusal
from task.local_core.relay import Answering, Relay, Target, passed_headers, read_body, with_query


@dataclass(frozen=True, slots=True)
class Routes:
    """The handler of every request that no other handler takes."""

    config: Callable[[], CoreConfig]
    keys: Keys
    relay: Relay

    async def answer(self, request: web.Request) -> web.StreamResponse:
        found = _found(self.config(), request)
        if found is None:
            raise Refusal(502, "No route")
        name, route = found
        if route.user_roles and route.user_roles.isdisjoint(request[IDENTITY].roles):
            raise Refusal(403, "Forbidden route")
        if route.response is not None:
            return PlainAnswer(route.response.status, route.response.body)
        return await self._pass_on(request, name, route)

    async def _pass_on(self, request: web.Request, name: str, route: Route) -> web.StreamResponse:
        body = await read_body(request)
        key = self.keys.mint(request[IDENTITY], name, request.headers)
        answering = Answering(broken=Refusal(502, "No route"), ended=lambda _: self.keys.end(key))
        try:
            return await self.relay.send(request, _targets(request, name, route, key), body, answering)
        finally:
            self.keys.end(key)


def _found(config: CoreConfig, request: web.Request) -> tuple[str, Route] | None:
    for name, route in sorted(config.routes.items(), key=lambda item: item[1].order):
        if route.methods and request.method not in route.methods:
            continue
        if any(re.fullmatch(path, request.path) for path in route.paths):
            return name, route
    return None


def _targets(request: web.Request, name: str, route: Route, key: PerRequestKey) -> list[Target]:
    headers = passed_headers(request.headers, authorization=False)
    headers["API-KEY"] = key.value
    usable = sorted((one for one in route.upstreams if one.weight > 0), key=lambda one: one.tier)
    return [Target(name, _address(request, route, one.endpoint), headers) for one in usable]


def _address(request: web.Request, route: Route, endpoint: str) -> str:
    if route.rewrite_path:
        endpoint = urlunsplit(urlsplit(endpoint)._replace(path=request.rel_url.raw_path))
    return with_query(endpoint, request.rel_url.raw_query_string)
