"""`POST /openai/deployments/{id}/chat/completions` and its siblings: Core's checks, then the call."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web
from multidict import CIMultiDict

from task.local.core.callers import IDENTITY, Identity, PerRequestKey
from task.local.core.config import Application, Deployment, Limit, Model, Upstream
from task.local.core.core import CORE, Core, ServedModel, usable
from task.local.core.listings import features_of
from task.local.core.relay import ResponseHooks, Target, json_object, passed_headers, read_body, with_query
from task.local.core.responses import Refusal
from task.local.core.sharing import ResponseWatch, request_files

ROUTE = r"/{slashes:/*}openai/deployments/{id:.+?}/{operation:chat/completions|completions|embeddings}"
BLOCK_SECONDS = 30.0  # for so long Core 0.25 keeps everybody away from an application after a 4xx
SWALLOWED = frozenset({429, 502, 503, 504})


def completion_routes() -> list[web.RouteDef]:
    return [web.post(ROUTE, _complete)]


async def _complete(request: web.Request) -> web.StreamResponse:
    if "application/json" not in request.headers.get("Content-Type", ""):
        raise Refusal(415, "Only application/json is supported")
    core, identity, name = request.app[CORE], request[IDENTITY], request.match_info["id"]
    served = next((model for model in core.models if model.name == name), None)
    deployment = _usable(request, name, served)
    _check_limit(core, deployment, identity)
    body = await read_body(request)
    document = json_object(body)
    files = _readable_files(core, document, identity)
    with core.keys.created(request, deployment.name, dict.fromkeys(files, "READ")) as key:
        hooks = _hooks(core, identity, deployment, key)
        if served is None:
            return await _call(request, deployment, key, _prepared(core, body, document, deployment), hooks)
        if request.match_info["operation"] != "chat/completions":
            raise Refusal(404)
        return await served.respond(request, deployment.defaults | document, hooks)


def _usable(request: web.Request, name: str, served: ServedModel | None) -> Deployment:
    found = request.app[CORE].config.deployment(name)
    deployment = usable(request, found, f"Unknown application: {name}", f"Forbidden deployment: {name}")
    if not deployment.endpoint and served is None:
        raise Refusal(503)
    key = request[IDENTITY].key
    if key is not None and not deployment.features.accessible_by_per_request_key:
        raise Refusal(403, f"Deployment {name} is not accessible by {key.deployment}")
    return deployment


def _check_limit(core: Core, deployment: Deployment, identity: Identity) -> None:
    if not isinstance(deployment, Model):
        return
    limit = core.config.limit(deployment.name, identity.roles)
    if not limit.positive:
        raise Refusal(403, {"message": "Access denied", "code": "403"})
    retry_after = core.throttled.get(deployment.name)
    if retry_after is not None:
        error = {"message": _limit_text(limit), "code": "429"}
        raise Refusal(429, error, headers={"Retry-After": str(retry_after)})


def _limit_text(limit: Limit) -> str:
    windows = (("Minute", limit.minute), ("Day", limit.day), ("Week", limit.week), ("Month", limit.month))
    used = " ".join(f"{name} limit: {allowed} / {allowed} tokens." for name, allowed in windows)
    return f"Hit token rate limit. {used}"


def _readable_files(core: Core, document: dict[str, Any], identity: Identity) -> list[str]:
    files = request_files(document, strict_nulls=core.core025)
    for url in files:
        if not core.access.may_read(identity, url):
            raise Refusal(403, f"Access denied to the file {url}")
    return files


def _prepared(core: Core, body: bytes, document: dict[str, Any], deployment: Deployment) -> bytes:
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
    if core.blocked.get(deployment.name, 0) > core.clock.now():
        raise Refusal(502, "No route")
    try:
        return await core.relay.send(request, _targets(request, deployment, key), body, hooks)
    except Refusal as refusal:
        if refusal.status == 503:
            _note(core, deployment, 429)
        raise


def _note(core: Core, deployment: Deployment, status: int) -> None:
    if core.core025 and 400 <= status < 500:
        core.blocked[deployment.name] = core.clock.now() + BLOCK_SECONDS


def _hooks(core: Core, caller: Identity, deployment: Deployment, key: PerRequestKey) -> ResponseHooks:
    failed: str | dict[str, Any] = "Failed to connect to origin"
    swallowed = SWALLOWED | core.config.retriable_error_codes

    def watch(content_type: str) -> ResponseWatch | None:
        receiver = caller.key
        if receiver is None:
            return None
        return ResponseWatch(
            f"files/{core.access.appdata_of(key.identity)}/",
            lambda urls: core.keys.add_rights(receiver, urls, "READ_WRITE"),
            events="text/event-stream" in content_type,
        )

    def ended(status: int) -> None:
        core.keys.end(key)
        _note(core, deployment, status)

    return ResponseHooks(
        unreachable=Refusal(502, failed if core.core025 else {"message": failed, "code": "502"}),
        broken=Refusal(502, "No route"),
        is_swallowed=swallowed.__contains__,
        watch=watch,
        ended=ended,
    )


def _targets(request: web.Request, deployment: Deployment, key: PerRequestKey) -> list[Target]:
    headers = passed_headers(request.headers, authorization=deployment.forward_auth_token)
    headers["API-KEY"] = key.value
    if not request.app[CORE].core025:
        headers.update(_dial_headers(deployment))
    url = with_query(deployment.endpoint or "", request.rel_url.raw_query_string)
    if not isinstance(deployment, Model) or not deployment.upstreams:
        return [Target(url, headers)]
    upstreams = sorted((one for one in deployment.upstreams if one.weight > 0), key=lambda one: one.tier)
    return [Target(url, _with_upstream(headers, one)) for one in upstreams[: deployment.max_retry_attempts]]


def _dial_headers(deployment: Deployment) -> dict[str, str]:
    headers = {
        "X-DIAL-DEPLOYMENT-FEATURES": orjson.dumps(features_of(deployment)).decode(),
        "X-DIAL-DEPLOYMENT-ID": deployment.name,
    }
    if isinstance(deployment, Model) and deployment.override_name:
        headers["X-DIAL-OVERRIDE-NAME"] = deployment.override_name
    if isinstance(deployment, Application) and deployment.application_properties is not None:
        headers["X-DIAL-APPLICATION-ID"] = deployment.name
        headers["X-DIAL-APPLICATION-PROPERTIES"] = orjson.dumps(deployment.application_properties).decode()
    return headers


def _with_upstream(headers: CIMultiDict[str], upstream: Upstream) -> CIMultiDict[str]:
    result = headers.copy()
    result["X-UPSTREAM-ENDPOINT"] = upstream.endpoint
    if upstream.key is not None:
        result["X-UPSTREAM-KEY"] = upstream.key
    if upstream.extra_data is not None:
        extra = upstream.extra_data
        result["X-UPSTREAM-EXTRA-DATA"] = extra if isinstance(extra, str) else orjson.dumps(extra).decode()
    return result
