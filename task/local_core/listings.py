"""What there is: models, applications, toolsets, the caller and the names of deployments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from task.local_core.config import Application, CoreConfig, Deployment, Model, Toolset, may_use
from task.local_core.identity import IDENTITY
from task.local_core.refusal import Refusal, json_answer

SINCE = 1672534800  # Core gives every configured deployment this same time, in seconds
EMPTY = ("assistants", "addons")


@dataclass(frozen=True, slots=True)
class Listings:
    """The listing routes; toolsets and names exist in today's Core only."""

    config: Callable[[], CoreConfig]
    core025: bool = False

    def register(self, app: web.Application) -> None:
        for name, entries, describe in (
            ("models", self._models, model_of),
            ("deployments", self._models, model_of),
            ("applications", self._applications, application_of),
        ):
            self._add(app, name, entries, describe)
        for name in EMPTY:
            self._add(app, name, _nobody, model_of)
        app.router.add_get("/v1/user/info", self.user, allow_head=False)
        if not self.core025:
            self._add(app, "toolsets", self._toolsets, toolset_of)
            app.router.add_get("/v1/deployments", self.names_listed, allow_head=False)
            app.router.add_get("/v1/deployment-names", self.names, allow_head=False)

    def _add(
        self,
        app: web.Application,
        name: str,
        entries: Callable[[], Mapping[str, Any]],
        describe: Callable[[Any], dict[str, Any]],
    ) -> None:
        async def listed(request: web.Request) -> web.Response:
            visible = _visible(request, entries().values())
            return json_answer(request, {"data": [describe(entry) for entry in visible], "object": "list"})

        async def one(request: web.Request) -> web.Response:
            entry = entries().get(request.match_info["id"])
            if entry is None:
                raise Refusal(404)
            if not _visible(request, [entry]):
                raise Refusal(403)
            return json_answer(request, describe(entry))

        app.router.add_get(f"/openai/{name}", listed, allow_head=False)
        app.router.add_get(f"/openai/{name}/{{id:.+}}", one, allow_head=False)

    async def user(self, request: web.Request) -> web.Response:
        identity = request[IDENTITY]
        who = {"project": identity.project} if identity.project is not None else {"userClaims": dict(identity.claims)}
        return json_answer(request, {"roles": list(identity.roles), **who})

    async def names(self, request: web.Request) -> web.Response:
        asked = request.query.get("type", "")
        types = {kind.strip() for kind in asked.split(",") if kind.strip()} or {"model", "application", "toolset"}
        sections = {"model": self._models(), "application": self._applications(), "toolset": self._toolsets()}
        found = [
            {"id": entry.name, "object": kind}
            for kind, entries in sections.items()
            if kind in types
            for entry in _visible(request, entries.values())
        ]
        return json_answer(request, found)

    async def names_listed(self, request: web.Request) -> web.Response:
        models = [model_of(entry) for entry in _visible(request, self._models().values())]
        applications = [application_of(entry) for entry in _visible(request, self._applications().values())]
        return json_answer(request, {"data": models + applications, "object": "list"})

    def _models(self) -> Mapping[str, Model]:
        return self.config().models

    def _applications(self) -> Mapping[str, Application]:
        return self.config().applications

    def _toolsets(self) -> Mapping[str, Toolset]:
        return self.config().toolsets


def model_of(model: Model) -> dict[str, Any]:
    """A model as the listings show it."""
    return _base(model, "model") | _without_nulls(
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
    return _base(application, "application") | _without_nulls(
        {
            "application": application.name,
            "application_properties": application.application_properties,
            "application_type_schema_id": application.application_type_schema_id,
        }
    )


def toolset_of(toolset: Toolset) -> dict[str, Any]:
    """A toolset as the listings show it."""
    return _without_nulls(
        {
            "id": toolset.name,
            "toolset": toolset.name,
            "display_name": toolset.display_name,
            "display_version": toolset.display_version,
            "icon_url": toolset.icon_url,
            "description": toolset.description,
            "reference": toolset.reference or toolset.name,
            "owner": "organization-owner",
            "object": "toolset",
            "status": "succeeded",
            "created_at": SINCE,
            "updated_at": SINCE,
            "transport": toolset.transport.lower(),
            "allowed_tools": toolset.allowed_tools,
        }
    )


def features_of(deployment: Deployment) -> dict[str, Any]:
    """A deployment's features in the listings' names."""
    features = deployment.features
    return {
        "rate": features.rate_endpoint is not None,
        "tokenize": features.tokenize_endpoint is not None,
        "truncate_prompt": features.truncate_prompt_endpoint is not None,
        "configuration": features.configuration_endpoint is not None,
        "system_prompt": features.system_prompt_supported,
        "tools": features.tools_supported,
        "seed": features.seed_supported,
        "url_attachments": features.url_attachments_supported,
        "folder_attachments": features.folder_attachments_supported,
        "allow_resume": features.allow_resume,
        "accessible_by_per_request_key": features.accessible_by_per_request_key,
        "content_parts": features.content_parts_supported,
        "temperature": features.temperature_supported,
        "addons": features.addons_supported,
        "cache": features.cache_supported,
        "auto_caching": features.auto_caching_supported,
        "parallel_tool_calls": features.parallel_tool_calls_supported,
        "mcp": False,
        "chat_completion": True,
        "responses_api": False,
        "assistant_attachments_in_request": features.assistant_attachments_in_request_supported,
        "consent_required": features.consent_required,
        "reasoning_efforts": features.reasoning_efforts,
    }


def _base(deployment: Deployment, kind: str) -> dict[str, Any]:
    return _without_nulls(
        {
            "id": deployment.name,
            "display_name": deployment.display_name,
            "display_version": deployment.display_version,
            "icon_url": deployment.icon_url,
            "description": deployment.description,
            "reference": deployment.unique_reference,
            "owner": "organization-owner",
            "object": kind,
            "status": "succeeded",
            "created_at": SINCE,
            "updated_at": SINCE,
            "features": features_of(deployment),
            "input_attachment_types": deployment.input_attachment_types,
            "max_input_attachments": _max_attachments(deployment),
            "defaults": deployment.defaults,
            "description_keywords": deployment.description_keywords,
            "max_retry_attempts": deployment.max_retry_attempts,
        }
    )


def _max_attachments(deployment: Deployment) -> int | None:
    return deployment.max_input_attachments if deployment.input_attachment_types else 0


def _visible(request: web.Request, entries: Iterable[Any]) -> list[Any]:
    roles = request[IDENTITY].roles
    return [entry for entry in entries if may_use(roles, entry.user_roles)]


def _nobody() -> Mapping[str, Model]:
    return {}


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _snake_case(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if fields is None:
        return None
    return {"".join(f"_{char.lower()}" if char.isupper() else char for char in name): fields[name] for name in fields}
