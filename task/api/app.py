"""The HTTP door of a product as one application with its OpenAPI document."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.types import ASGIApp

from task.api import completions, files, memory, page, picks, platform, responses, runs, sessions, sign_ins, traces
from task.api.completions import ChunkBody
from task.api.editor import add_editor
from task.api.failures import ErrorBody, add_failure_handlers, failure_of
from task.api.files import FileShelf
from task.api.guard import Guard, HttpOptions
from task.api.identity import ApiCaller, Identity
from task.api.responses import ResponseEvent
from task.api.runs import RunEvent
from task.api.schemas import SCHEMA_REFERENCE
from task.api.service import Service
from task.product import Profile, Services
from task.runs.runner import Runner
from task.runs.table import Preparing
from task.runs.titles import Titles
from task.tools.base import WEB_SEARCH

ABOUT = (
    "The agent for every program that speaks OpenAI, for platforms that compare agents, and for the web page. Keys are "
    "sent as `Authorization: Bearer KEY`; in the mode `open` none is needed."
)
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "Api-Key"},
}
ROUTERS = [
    module.routes
    for module in (completions, files, picks, responses, platform, sessions, traces, runs, sign_ins, memory)
]
_NAMED: tuple[type[BaseModel], ...] = (ErrorBody, ChunkBody, ResponseEvent, RunEvent)  # no route has them as its model
_NEVER_SENT = ("HTTPValidationError", "ValidationError")  # FastAPI's 422; ours is a 400


class HttpApi:
    """The HTTP door of a product: `app` answers requests, `guarded` puts the guard before an application."""

    def __init__(self, services: Services, profile: Profile, options: HttpOptions) -> None:
        # The documented name of the search, and a limit of steps of its own.
        limits = replace(profile.limits, steps=options.steps)
        profile = replace(profile, aliases=(WEB_SEARCH,), limits=limits)
        self._metrics = services.telemetry.metrics
        self._options, self._titles = options, Titles(services, profile, options.titles)
        self.runner = Runner(
            services,
            profile,
            options.detach_seconds,
            options.runs_per_caller,
            describe=lambda error, model: failure_of(error, model).event(),
            ended=self._titles.begin,
        )
        self._identity = Identity(options.mode, options.core_key, services, options.requests_per_minute)
        shelf, preparing = FileShelf(services, options.upload_bytes), Preparing(services, profile)
        service_of = partial(Service, services, profile, options, self.runner, preparing, shelf)
        self.app = Application(options, self._identity, service_of)
        if options.editor_origins:
            add_editor(self.app, options, services.applications.bounds)

    def guarded(self, app: ASGIApp) -> Guard:
        return Guard(app, self._options, self._identity, self._metrics)

    async def close(self) -> None:
        await self.runner.close()
        await self._titles.close()


class Application(FastAPI):
    """The routes of the HTTP door, with those of the web page unless it is off, and their OpenAPI document."""

    def __init__(self, options: HttpOptions, identity: Identity, service_of: Callable[[ApiCaller], Service]) -> None:
        super().__init__(title="General purpose agent", version="1", description=ABOUT, docs_url=None, redoc_url=None)
        self.state.identity, self.state.service_of = identity, service_of
        self._mode = options.mode
        add_failure_handlers(self)
        for router in [*ROUTERS, *([page.routes] if options.ui else [])]:
            # Unchanged: `include_router` would build each of them a second time, while the first request waits.
            self.router.routes.extend(router.routes)
        paths = [*(["/"] if options.ui else []), "/static/{name:path}"]
        if options.ui or options.editor_origins:
            page.add_page(self, paths, listens=bool(options.transcription))

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document with the keys and the bodies of streams, and without failures that are never sent."""
        document = super().openapi()
        if "security" in document:
            return document
        document["security"] = [*([{}] if self._mode == "open" else []), *({name: []} for name in SCHEMES)]
        components = document["components"]
        components["securitySchemes"] = SCHEMES
        for name in _NEVER_SENT:
            components["schemas"].pop(name, None)
        models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "serialization") for model in _NAMED]
        _, schemas = models_json_schema(models, ref_template=SCHEMA_REFERENCE)
        components["schemas"] = schemas["$defs"] | components["schemas"]
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        return document
