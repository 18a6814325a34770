"""The listings: models, applications, toolsets, names of deployments, and the caller."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from task.local.core.access import PRINCIPAL
from task.local.core.config import Deployment, ListedEntry, Model
from task.local.core.core import CORE, usable
from task.local.core.responses import json_response

SINCE = 1672534800  # Core gives every configured deployment this same time, in seconds
UNLISTED = {
    *("name", "type", "endpoint", "upstreams", "features", "user_roles"),
    *("forward_auth_token", "forward_per_request_key"),
}


async def list_entries(request: web.Request) -> web.Response:
    """The models, applications or toolsets that the caller's roles may use; deployments are the models."""
    visible = _visible(request, request.match_info["section"])
    return json_response({"data": [described(entry) for entry in visible], "object": "list"})


async def show_entry(request: web.Request) -> web.Response:
    """One of them."""
    entries = _section(request, request.match_info["section"])
    return json_response(described(usable(request, entries.get(request.match_info["id"]))))


async def list_names(request: web.Request) -> web.Response:
    """Ids and kinds, of the kinds in `type` alone where it is given."""
    wanted = request.query.get("type", "") or "model,application,toolset"
    kinds = {kind.strip() for kind in wanted.split(",")}
    found = [
        {"id": entry.name, "object": kind}
        for kind in ("model", "application", "toolset")
        if kind in kinds
        for entry in _visible(request, f"{kind}s")
    ]
    return json_response(found)


async def show_user(request: web.Request) -> web.Response:
    """The caller's roles with the project of the key or the claims of the token."""
    user = request[PRINCIPAL]
    caller = {"project": user.project} if user.project is not None else {"userClaims": dict(user.claims)}
    return json_response({"roles": list(user.roles), **caller})


def _section(request: web.Request, name: str) -> Mapping[str, ListedEntry]:
    config = request.app[CORE].config
    return {"applications": config.applications, "toolsets": config.toolsets}.get(name, config.models)


def _visible(request: web.Request, section: str) -> Iterable[ListedEntry]:
    return (entry for entry in _section(request, section).values() if request[PRINCIPAL].may_use(entry.user_roles))


def described(entry: ListedEntry) -> dict[str, Any]:
    """An entry as the listings show it: in snake_case, without nulls."""
    shown: dict[str, Any] = entry.model_dump(exclude=UNLISTED, exclude_none=True) | {
        "id": entry.name,
        entry.kind: entry.name,
        "object": entry.kind,
        "reference": entry.reference or entry.name,
        "owner": "organization-owner",
        "status": "succeeded",
        "created_at": SINCE,
        "updated_at": SINCE,
    }
    if isinstance(entry, Deployment):
        # An endpoint counts as the feature behind it.
        features = {
            name.removesuffix("_endpoint").removesuffix("_supported"): bool(value) if "_endpoint" in name else value
            for name, value in _snake_case(entry.features.model_dump()).items()
        }
        shown["features"] = {"mcp": False, "chat_completion": True, "responses_api": False} | features
        if not entry.input_attachment_types:
            shown["max_input_attachments"] = 0
    if isinstance(entry, Model):
        shown["lifecycle_status"] = "generally-available"
        shown["capabilities"] = {
            "scale_types": ["standard"],
            "completion": entry.type == "completion",
            "chat_completion": entry.is_chat,
            "embeddings": entry.type == "embedding",
            "fine_tune": False,
            "inference": False,
        }
    return shown | {name: _snake_case(shown[name]) for name in ("limits", "pricing") if name in shown}


def _snake_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value for name, value in fields.items()}
