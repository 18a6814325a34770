"""What there is: models, applications, toolsets, the caller; and what DIAL Chat asks of Core besides its data."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from aiohttp import web

from task.local.core.callers import IDENTITY
from task.local.core.config import Application, CoreConfig, Deployment, Entry, Model, Toolset
from task.local.core.core import CORE, deployment_of, usable
from task.local.core.responses import PlainResponse, Refusal, json_response

SINCE = 1672534800  # Core gives every configured deployment this same time, in seconds

Select = Callable[[CoreConfig], Mapping[str, Any]]
Describe = Callable[[Any], dict[str, Any]]
Handler = Callable[[web.Request], Awaitable[web.Response]]
HEARTBEAT_SECONDS = 15.0
CHANNEL_HEADER = "X-DIAL-CLIENT-CHANNEL-ID"
_REFUSED = {
    "resource/share/create": "Local Core does not share resources",
    **dict.fromkeys(
        [f"publication/{verb}" for verb in ("create", "delete", "approve", "reject", "update")],
        "Local Core does not publish resources",
    ),
}


def listing_routes(*, core025: bool) -> list[web.RouteDef]:
    """Toolsets and names exist in today's Core only."""
    sections: dict[str, tuple[Select, Describe]] = {
        "models": (lambda config: config.models, model_of),
        "deployments": (lambda config: config.models, model_of),
        "applications": (lambda config: config.applications, application_of),
        "assistants": (lambda _: {}, model_of),
        "addons": (lambda _: {}, model_of),
        "toolsets": (lambda config: config.toolsets, toolset_of),
    }
    if core025:
        del sections["toolsets"]
    routes = [_get("/v1/user/info", _user)]
    for name, (select, describe) in sections.items():
        routes += [
            _get(f"/openai/{name}", _listed(select, describe)),
            _get(f"/openai/{name}/{{id:.+}}", _one(select, describe)),
        ]
    if core025:
        return routes
    return [*routes, _get("/v1/deployments", _deployments), _get("/v1/deployment-names", _names)]


def _get(path: str, handler: Handler) -> web.RouteDef:
    return web.get(path, handler, allow_head=False)


def _listed(select: Select, describe: Describe) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        visible = _visible(request, select(request.app[CORE].config))
        return json_response(request, {"data": [describe(entry) for entry in visible], "object": "list"})

    return handler


def _one(select: Select, describe: Describe) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        entry = select(request.app[CORE].config).get(request.match_info["id"])
        return json_response(request, describe(usable(request, entry)))

    return handler


async def _user(request: web.Request) -> web.Response:
    identity = request[IDENTITY]
    caller = {"project": identity.project} if identity.project is not None else {"userClaims": dict(identity.claims)}
    return json_response(request, {"roles": list(identity.roles), **caller})


async def _names(request: web.Request) -> web.Response:
    config, wanted = request.app[CORE].config, request.query.get("type", "")
    sections: dict[str, Mapping[str, Any]] = {
        "model": config.models,
        "application": config.applications,
        "toolset": config.toolsets,
    }
    kinds = {kind.strip() for kind in wanted.split(",") if kind.strip()} or sections.keys()
    found = [
        {"id": entry.name, "object": kind}
        for kind, entries in sections.items()
        if kind in kinds
        for entry in _visible(request, entries)
    ]
    return json_response(request, found)


async def _deployments(request: web.Request) -> web.Response:
    config = request.app[CORE].config
    models = [model_of(entry) for entry in _visible(request, config.models)]
    applications = [application_of(entry) for entry in _visible(request, config.applications)]
    return json_response(request, {"data": models + applications, "object": "list"})


def _visible(request: web.Request, entries: Mapping[str, Any]) -> Iterable[Any]:
    return (entry for entry in entries.values() if request[IDENTITY].may_use(entry.user_roles))


def model_of(model: Model) -> dict[str, Any]:
    """A model as the listings show it."""
    return _deployment(model, "model") | _without_nulls(
        {
            "model": model.name,
            "lifecycle_status": "generally-available",
            "capabilities": {
                "scale_types": ["standard"],
                "completion": model.type == "completion",
                "chat_completion": model.is_chat,
                "embeddings": model.type == "embedding",
                "fine_tune": False,
                "inference": False,
            },
            "tokenizer_model": model.tokenizer_model,
            "limits": _snake_case(model.limits),
            "pricing": _snake_case(model.pricing),
        }
    )


def application_of(application: Application) -> dict[str, Any]:
    """An application as the listings show it."""
    return _deployment(application, "application") | _without_nulls(
        {
            "application": application.name,
            "application_properties": application.application_properties,
            "application_type_schema_id": application.application_type_schema_id,
        }
    )


def toolset_of(toolset: Toolset) -> dict[str, Any]:
    """A toolset as the listings show it."""
    return _entry(toolset, "toolset") | {
        "toolset": toolset.name,
        "transport": toolset.transport.lower(),
        "allowed_tools": toolset.allowed_tools,
    }


def features_of(deployment: Deployment) -> dict[str, Any]:
    """A deployment's features in the listings' names; an endpoint counts as the feature behind it."""
    listed: dict[str, Any] = {"mcp": False, "chat_completion": True, "responses_api": False}
    for name, value in deployment.features:
        feature = name.removesuffix("_endpoint")
        listed[feature.removesuffix("_supported")] = value if feature == name else value is not None
    return listed


def _deployment(deployment: Deployment, kind: str) -> dict[str, Any]:
    return _entry(deployment, kind) | _without_nulls(
        {
            "features": features_of(deployment),
            "input_attachment_types": deployment.input_attachment_types,
            "max_input_attachments": deployment.max_input_attachments if deployment.input_attachment_types else 0,
            "defaults": deployment.defaults,
            "description_keywords": deployment.description_keywords,
            "max_retry_attempts": deployment.max_retry_attempts,
        }
    )


def _entry(entry: Entry, kind: str) -> dict[str, Any]:
    return _without_nulls(
        {
            "id": entry.name,
            "display_name": entry.display_name,
            "display_version": entry.display_version,
            "icon_url": entry.icon_url,
            "description": entry.description,
            "reference": entry.unique_reference,
            "owner": "organization-owner",
            "object": kind,
            "status": "succeeded",
            "created_at": SINCE,
            "updated_at": SINCE,
        }
    )


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _snake_case(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if fields is None:
        return None
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value for name, value in fields.items()}


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
