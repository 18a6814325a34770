"""`POST /openai/deployments/{id}/chat/completions` and its siblings: Core's checks, then the call."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web
from multidict import CIMultiDict

from task.local.core.access import PRINCIPAL, PerRequestKey, Principal
from task.local.core.config import Application, Deployment, Model
from task.local.core.core import CORE, Core, usable
from task.local.core.relay import ResponseHooks, passed_headers, with_query
from task.local.core.responses import Refusal, json_object, read_body
from task.local.core.sharing import ResponseWatch, request_files

ROUTE = r"/{slashes:/*}openai/deployments/{id:.+?}/{operation:chat/completions|completions|embeddings}"
BLOCK_SECONDS = 30.0  # for so long Core 0.25 keeps everybody away from an application after a 4xx
SWALLOWED = frozenset({429, 502, 503, 504})


def completion_routes() -> list[web.RouteDef]:
    return [web.post(ROUTE, _complete)]


async def _complete(request: web.Request) -> web.StreamResponse:
    if "application/json" not in request.headers.get("Content-Type", ""):
        raise Refusal(415, "Only application/json is supported")
    core, caller, name = request.app[CORE], request[PRINCIPAL], request.match_info["id"]
    served = next((model for model in core.models if model.name == name), None)
    found = core.config.deployment(name)
    deployment = usable(request, found, f"Unknown application: {name}", f"Forbidden deployment: {name}")
    if not deployment.endpoint and served is None:
        raise Refusal(503)
    if caller.key is not None and not deployment.features.accessible_by_per_request_key:
        raise Refusal(403, f"Deployment {name} is not accessible by {caller.key.deployment}")

    body = await read_body(request)
    document = json_object(body)
    files = request_files(document)
    for url in files:
        if not core.access.may_read(caller, url):
            raise Refusal(403, f"Access denied to the file {url}")

    with core.keys.created(caller, deployment.name, dict.fromkeys(files, "READ")) as key:
        hooks = _hooks(core, caller, deployment, key)
        if served is None:
            return await _call(request, deployment, key, _with_defaults(core, body, document, deployment), hooks)
        if request.match_info["operation"] != "chat/completions":
            raise Refusal(404)
        return await served.respond(request, deployment.defaults | document, hooks)


def _with_defaults(core: Core, body: bytes, document: dict[str, Any], deployment: Deployment) -> bytes:
    added = {name: value for name, value in deployment.defaults.items() if name not in document}
    if isinstance(deployment, Model) and deployment.override_name:
        added["model"] = deployment.override_name
    if core.core025 and isinstance(deployment, Application) and deployment.application_properties is not None:
        fields = document.get("custom_fields")
        old = fields if isinstance(fields, dict) else {}
        added["custom_fields"] = old | {"application_properties": deployment.application_properties}
    return orjson.dumps(document | added) if added else body


async def _call(
    request: web.Request, deployment: Deployment, key: PerRequestKey, body: bytes, hooks: ResponseHooks
) -> web.StreamResponse:
    core = request.app[CORE]
    if core.blocked.get(deployment.name, 0) > core.settings.clock():
        raise Refusal(502, "No route")
    headers = _headers(request, deployment, key)
    url = with_query(deployment.endpoint or "", request.rel_url.raw_query_string)
    try:
        return await core.relay.send(request, url, headers, body, hooks)
    except Refusal as refusal:
        if refusal.status == 503:
            _block_after(core, deployment, 429)
        raise


def _block_after(core: Core, deployment: Deployment, status: int) -> None:
    if core.core025 and 400 <= status < 500:
        core.blocked[deployment.name] = core.settings.clock() + BLOCK_SECONDS


def _hooks(core: Core, caller: Principal, deployment: Deployment, key: PerRequestKey) -> ResponseHooks:
    failed: str | dict[str, Any] = "Failed to connect to origin"

    def watch(content_type: str) -> ResponseWatch | None:
        receiver = caller.key
        if receiver is None:
            return None
        return ResponseWatch(
            f"files/{core.access.appdata_of(key.principal)}/",
            lambda urls: core.keys.add_rights(receiver, urls),
            events="text/event-stream" in content_type,
        )

    def ended(status: int) -> None:
        core.keys.end(key)
        _block_after(core, deployment, status)

    return ResponseHooks(
        unreachable=Refusal(502, failed if core.core025 else {"message": failed, "code": "502"}),
        broken=Refusal(502, "No route"),
        is_swallowed=SWALLOWED.__contains__,
        watch=watch,
        ended=ended,
    )


def _headers(request: web.Request, deployment: Deployment, key: PerRequestKey) -> CIMultiDict[str]:
    headers = passed_headers(request.headers, authorization=deployment.forward_auth_token)
    headers["API-KEY"] = key.value
    if isinstance(deployment, Model) and deployment.upstreams:
        upstream = deployment.upstreams[0]
        headers["X-UPSTREAM-ENDPOINT"] = upstream.endpoint
        if upstream.key is not None:
            headers["X-UPSTREAM-KEY"] = upstream.key
        if upstream.extra_data is not None:
            extra = upstream.extra_data
            headers["X-UPSTREAM-EXTRA-DATA"] = extra if isinstance(extra, str) else orjson.dumps(extra).decode()
    if request.app[CORE].core025:
        return headers
    headers["X-DIAL-DEPLOYMENT-ID"] = deployment.name
    if isinstance(deployment, Application) and deployment.application_properties is not None:
        headers["X-DIAL-APPLICATION-ID"] = deployment.name
        headers["X-DIAL-APPLICATION-PROPERTIES"] = orjson.dumps(deployment.application_properties).decode()
    return headers
