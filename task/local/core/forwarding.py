"""Calls that go to endpoints of the configuration: completions, ratings, configurations, and MCP servers."""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from task.local.core.access import PRINCIPAL, parse
from task.local.core.config import CoreApplication, ListedEntry, Model, Toolset
from task.local.core.core import CORE, usable
from task.local.core.deployments import application, hand_over
from task.local.core.relay import Rewrite, passed_headers, request_files, send, with_query
from task.local.core.responses import PlainResponse, Refusal, json_object

BLOCK_SECONDS = 30.0  # for so long Core 0.25 refuses every call of an application after a 4xx
SWALLOWED = frozenset({429, 502, 503, 504})


async def complete(request: web.Request) -> web.StreamResponse:
    """A completion of a deployment, after Core's checks in Core's order."""
    if "application/json" not in request.headers.get("Content-Type", ""):
        raise Refusal(415, "Only application/json is supported")
    core, caller, name = request.app[CORE], request[PRINCIPAL], request.match_info["id"]
    served = next((model for model in core.models if model.name == name), None)
    found = await application(request, name) or core.config.models.get(name)
    deployment = usable(request, found, f"Unknown application: {name}", f"Forbidden deployment: {name}")
    if not deployment.endpoint and served is None:
        raise Refusal(503)

    body = await request.read()
    document = json_object(body)
    files = request_files(document)
    for url in files:
        if core.access.granted(caller, parse(url)) is None:
            raise Refusal(403, f"Access denied to the file {url}")

    if served is not None:
        if request.match_info["operation"] != "chat/completions":
            raise Refusal(404)
        return await served.respond(request, deployment.defaults | document)
    if core.blocked.get(name, 0) > core.settings.clock():
        raise Refusal(502, "No route")
    added = {field: value for field, value in deployment.defaults.items() if field not in document}
    url = with_query(deployment.endpoint or "", request.rel_url.raw_query_string)
    home = f"files/{core.access.appdata_of(caller.owner, deployment.name)}/"
    share = partial(core.keys.add_rights, caller.key, home) if caller.key else None  # a user owns that folder
    headers = passed_headers(request.headers, authorization=deployment.forward_auth_token)
    headers["X-DIAL-DEPLOYMENT-ID"] = name
    if isinstance(deployment, CoreApplication) and deployment.application_type_schema_id:
        files += await hand_over(request, deployment, headers, added := document | added)
    if added:
        body = orjson.dumps(document | added)
    if isinstance(deployment, Model) and deployment.upstreams:
        upstream = deployment.upstreams[0]
        headers["X-UPSTREAM-ENDPOINT"] = upstream.endpoint
        if upstream.key is not None:
            headers["X-UPSTREAM-KEY"] = upstream.key
    with core.keys.created(caller, deployment.name, dict.fromkeys(files, "READ")) as key:
        headers["API-KEY"] = key.value
        response = await send(core.session, request, url, headers, body, swallowed=SWALLOWED, share=share)
    if core.settings.version <= 25 and (response.status == 503 or 400 <= response.status < 500):
        core.blocked[name] = core.settings.clock() + BLOCK_SECONDS
    return response


async def call_feature(request: web.Request) -> web.StreamResponse:
    """The configuration of a deployment (GET), or a rating of one of its answers (POST)."""
    name = request.match_info["id"]
    deployment = usable(request, await application(request, name) or request.app[CORE].config.models.get(name))
    features = deployment.features
    endpoint = features.configuration_endpoint if request.method == "GET" else features.rate_endpoint
    if endpoint is None:
        return PlainResponse(200)
    return await _call(request, deployment, endpoint)


async def call_mcp(request: web.Request) -> web.StreamResponse:
    """A request to a toolset, or to the MCP server of an application, restricted to its `allowedTools`."""
    name, kind = request.match_info["id"], request.match_info["section"].removesuffix("s")
    found = request.app[CORE].config.toolsets.get(name) if kind == "toolset" else await application(request, name)
    entry = usable(request, found, f"Unknown {kind}: {name}", f"Forbidden {kind}: {name}")
    if (server := entry if isinstance(entry, Toolset) else entry.mcp) is None:
        raise Refusal(400, f"Deployment {name} has no MCP server")
    if not server.endpoint:
        raise Refusal(503)
    allowed, rewrite = server.allowed_tools, None
    if allowed and request.can_read_body and _checked_method(await request.read(), allowed) == "tools/list":
        rewrite = partial(_with_allowed_tools, allowed=allowed)
    url = with_query(server.endpoint, request.rel_url.raw_query_string)
    return await _call(request, entry, url, with_key=server.forward_per_request_key, rewrite=rewrite)


async def _call(
    request: web.Request, entry: ListedEntry, url: str, *, with_key: bool = True, rewrite: Rewrite | None = None
) -> web.StreamResponse:
    core, headers = request.app[CORE], passed_headers(request.headers, authorization=entry.forward_auth_token)
    files: list[str] = []
    if isinstance(entry, CoreApplication) and entry.application_type_schema_id:
        files = await hand_over(request, entry, headers, {})
    with core.keys.created(request[PRINCIPAL], entry.name, dict.fromkeys(files, "READ")) as key:
        if with_key:
            headers["API-KEY"] = key.value
        return await send(core.session, request, url, headers, await request.read(), rewrite=rewrite)


def _checked_method(body: bytes, allowed: Sequence[str]) -> Any:
    def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Parsers differ in which of two equal names they take: the server might see another call than we do.
        if len(fields := dict(pairs)) < len(pairs):
            raise ValueError("a name stands twice in one object")
        return fields

    try:
        message = json.loads(body, object_pairs_hook=unambiguous)
        method = message.get("method")
        refused = method == "tools/call" and message["params"]["name"] not in allowed
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise Refusal(400, "Invalid JSON request body") from None
    if refused:
        raise Refusal(403, "Tool is not allowed")
    return method


def _with_allowed_tools(body: bytes, allowed: Sequence[str]) -> bytes:
    # A JSON-RPC response, or a stream of them as events.
    lines: list[bytes] = []
    for line in body.split(b"\n"):
        start = max(line.find(b"{"), 0)
        with suppress(ValueError, KeyError, TypeError):  # an empty line, or a message without tools
            message: dict[str, Any] = json.loads(line[start:])
            message["result"]["tools"] = [tool for tool in message["result"]["tools"] if tool["name"] in allowed]
            line = line[:start] + json.dumps(message).encode()
        lines.append(line)
    return b"\n".join(lines)
