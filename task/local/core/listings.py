"""The listings: models, applications, toolsets, deployments, and the caller."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from task.local.core.access import PRINCIPAL
from task.local.core.config import Application, CoreConfig, Deployment, ListedEntry, Model, Toolset
from task.local.core.core import CORE, usable
from task.local.core.responses import json_response

SINCE = 1672534800  # Core gives every configured deployment this same time, in seconds

Select = Callable[[CoreConfig], Mapping[str, Any]]
Describe = Callable[[Any], dict[str, Any]]
Handler = Callable[[web.Request], Awaitable[web.Response]]


def listing_routes(*, core025: bool) -> list[web.RouteDef]:
    """Toolsets and names exist in today's Core only."""
    sections: dict[str, tuple[Select, Describe]] = {
        "models": (lambda config: config.models, model_of),
        "deployments": (lambda config: config.models, model_of),
        "applications": (lambda config: config.applications, application_of),
    }
    if not core025:
        sections["toolsets"] = (lambda config: config.toolsets, toolset_of)
    routes = [web.get("/v1/user/info", _user, allow_head=False)]
    for name, (select, describe) in sections.items():
        routes += [
            web.get(f"/openai/{name}", _listed(select, describe), allow_head=False),
            web.get(f"/openai/{name}/{{id:.+}}", _one(select, describe), allow_head=False),
        ]
    return routes if core025 else [*routes, web.get("/v1/deployment-names", _names, allow_head=False)]


def _listed(select: Select, describe: Describe) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        visible = _visible(request, select(request.app[CORE].config))
        return json_response({"data": [describe(entry) for entry in visible], "object": "list"})

    return handler


def _one(select: Select, describe: Describe) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        entry = select(request.app[CORE].config).get(request.match_info["id"])
        return json_response(describe(usable(request, entry)))

    return handler


async def _user(request: web.Request) -> web.Response:
    user = request[PRINCIPAL]
    caller = {"project": user.project} if user.project is not None else {"userClaims": dict(user.claims)}
    return json_response({"roles": list(user.roles), **caller})


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
    return json_response(found)


def _visible(request: web.Request, entries: Mapping[str, Any]) -> Iterable[Any]:
    return (entry for entry in entries.values() if request[PRINCIPAL].may_use(entry.user_roles))


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


def _entry(entry: ListedEntry, kind: str) -> dict[str, Any]:
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
