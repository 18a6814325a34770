"""Calls that go to endpoints of the configuration: rating and configuration of deployments, and MCP toolsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from aiohttp import web
from multidict import CIMultiDict

from task.local.core.access import PRINCIPAL
from task.local.core.core import CORE, deployment_of, usable
from task.local.core.relay import ResponseHooks, passed_headers, with_query
from task.local.core.responses import PlainResponse, Refusal, read_body


def forwarding_routes(*, core025: bool) -> list[web.RouteDef]:
    """Core 0.25 has no toolsets."""
    routes = [
        web.get("/v1/deployments/{id:.+}/configuration", _feature, allow_head=False),
        web.post("/v1/{id:.+}/rate", _feature),
    ]
    if core025:
        return routes
    return routes + [web.route(method, "/v1/toolset/{id:.+}/mcp", _mcp) for method in ("GET", "POST", "DELETE")]


async def _feature(request: web.Request) -> web.StreamResponse:
    deployment = deployment_of(request)
    features = deployment.features
    endpoint = features.configuration_endpoint if request.method == "GET" else features.rate_endpoint
    if endpoint is None:
        return PlainResponse(200)
    headers = passed_headers(request.headers, authorization=deployment.forward_auth_token)
    return await _forward_with_key(request, deployment.name, endpoint, headers)


async def _mcp(request: web.Request) -> web.StreamResponse:
    name, core = request.match_info["id"], request.app[CORE]
    found = core.config.toolsets.get(name)
    toolset = usable(request, found, f"Unknown toolset: {name}", f"Forbidden toolset: {name}")
    if not toolset.endpoint:
        raise Refusal(503)
    hooks = ResponseHooks()
    if toolset.allowed_tools and request.method == "POST":
        methods = _checked_methods(await read_body(request), toolset.allowed_tools)
        if "tools/list" in methods:
            hooks = ResponseHooks(rewrite=partial(_with_allowed_tools, allowed=toolset.allowed_tools))
    url = with_query(toolset.endpoint, request.rel_url.raw_query_string)
    headers = passed_headers(request.headers, authorization=toolset.forward_auth_token)
    if toolset.forward_per_request_key:
        return await _forward_with_key(request, toolset.name, url, headers, hooks)
    return await core.relay.send(request, url, headers, await read_body(request), hooks)


def _checked_methods(body: bytes, allowed: Sequence[str]) -> list[Any]:
    """The methods of the JSON-RPC messages, after none of them calls a tool that is not allowed."""

    def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Parsers differ in which of two equal names they take: the server might see another call than we do.
        if len(fields := dict(pairs)) < len(pairs):
            raise ValueError("a name stands twice in one object")
        return fields

    try:
        content: Any = json.loads(body, object_pairs_hook=unambiguous)
        messages = cast("list[dict[str, Any]]", content if isinstance(content, list) else [content])
        called = [message["params"]["name"] for message in messages if message.get("method") == "tools/call"]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise Refusal(400, "Invalid JSON request body") from None
    if any(name not in allowed for name in called):
        raise Refusal(403, "Tool is not allowed")
    return [message.get("method") for message in messages]


def _with_allowed_tools(body: bytes, allowed: Sequence[str]) -> bytes:
    """A JSON-RPC response, or a stream of them as events, whose lists have the allowed tools only."""
    lines: list[bytes] = []
    for line in body.split(b"\n"):
        start = max(line.find(b"{"), 0)
        with suppress(ValueError, KeyError, TypeError):  # an empty line, or a message without tools
            message: dict[str, Any] = json.loads(line[start:])
            message["result"]["tools"] = [tool for tool in message["result"]["tools"] if tool["name"] in allowed]
            line = line[:start] + json.dumps(message).encode()
        lines.append(line)
    return b"\n".join(lines)


async def _forward_with_key(
    request: web.Request, name: str, url: str, headers: CIMultiDict[str], hooks: ResponseHooks | None = None
) -> web.StreamResponse:
    body, core = await read_body(request), request.app[CORE]
    with core.keys.created(request[PRINCIPAL], name) as key:
        headers["API-KEY"] = key.value
        return await core.relay.send(
            request, url, headers, body, replace(hooks or ResponseHooks(), ended=lambda _: core.keys.end(key))
        )
