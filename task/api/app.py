"""The HTTP door of a product as one application with its OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.types import ASGIApp

from task.api.edge.failures import ErrorBody, add_failure_handlers, failure_of
from task.api.edge.guard import Guard, Rules
from task.api.edge.identity import Identity, Mode
from task.api.edge.schemas import SCHEMA_REFERENCE
from task.api.openai import responses
from task.api.openai import routes as openai_routes
from task.api.openai.completions import ChunkBody
from task.api.openai.files import FileShelf
from task.api.openai.incoming import MessageReader
from task.api.openai.responses_schemas import ResponseEvent
from task.api.platform import routes as platform_routes
from task.api.platform import sessions as session_routes
from task.api.platform import traces
from task.api.platform.events import RunEvent
from task.api.service import Answers, Service
from task.api.web.page import add_page
from task.api.web.page import routes as page_routes
from task.product import Profile, Services
from task.runs.preparing import Preparing
from task.runs.runner import Runner
from task.runs.titles import OFF, Titles
from task.tools.schemas import WEB_SEARCH

ABOUT = (
    "The agent for every program that speaks OpenAI, for platforms that compare agents, and for the web page. Keys are "
    "sent as `Authorization: Bearer KEY`; in the mode `open` none is needed."
)
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "Api-Key"},
}
_NAMED: tuple[type[BaseModel], ...] = (ErrorBody, ChunkBody, ResponseEvent, RunEvent)  # no route has them as its model
_NEVER_SENT = ("HTTPValidationError", "ValidationError")  # FastAPI's 422; ours is a 400


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What an operator sets of the HTTP door.

    `steps` limits the requests with tools of one run, `detach_seconds` how long a run continues without a listener;
    `core_key` is the agent's own key at DIAL Core, for the modes in which callers have none; `behind_core` says that
    Core authenticates the callers of the DIAL route, whose bodies are at most `dial_bytes` long.
    """

    mode: Mode
    core_key: str
    hosts: Sequence[str]
    origins: Sequence[str]
    body_bytes: int
    upload_bytes: int
    behind_core: bool
    dial_bytes: int
    requests_per_minute: int
    runs_per_caller: int
    ui: bool
    steps: int
    detach_seconds: float
    heartbeat_seconds: float
    titles: str
    transcription: str


class HttpApi:
    """The HTTP door of a product: `app` answers requests, `guarded` is an application with the guard before all of its
    routes, `close` ends the runs."""

    def __init__(self, services: Services, profile: Profile, options: HttpOptions) -> None:
        # The documented name of the search, and a limit of steps of its own.
        limits = replace(profile.limits, steps=options.steps)
        profile = replace(profile, aliases=(WEB_SEARCH,), limits=limits)
        shelf = FileShelf(services, options.upload_bytes)
        self._titles = Titles(services, profile, options.titles)
        self.runner = Runner(
            services,
            profile,
            options.detach_seconds,
            options.runs_per_caller,
            describe=lambda error, model: failure_of(error, model).event(),
            ended=self._titles.begin,
        )
        self._identity = Identity(options.mode, options.core_key, services, options.requests_per_minute)
        service = Service(
            services,
            profile,
            self._identity,
            self.runner,
            Answers(self.runner, options.heartbeat_seconds),
            Preparing(services, profile),
            MessageReader(shelf),
            shelf,
            titles=options.titles != OFF,
            transcription=options.transcription,
        )
        self._rules = Rules(
            options.mode == "open", options.behind_core, options.hosts, options.origins,
            options.body_bytes, options.upload_bytes, options.dial_bytes,
        )  # fmt: skip
        self.app = _application(service, ui=options.ui)

    def guarded(self, app: ASGIApp) -> Guard:
        return Guard(app, self._rules, self._identity)

    async def close(self) -> None:
        await self.runner.close()
        await self._titles.close()


def _application(service: Service, *, ui: bool) -> FastAPI:
    app = FastAPI(title="General purpose agent", version="1", description=ABOUT, docs_url=None, redoc_url=None)
    app.state.service = service
    add_failure_handlers(app)
    routers = [
        openai_routes.routes,
        responses.routes,
        platform_routes.routes,
        session_routes.routes,
        traces.routes,
        platform_routes.prompt_routes,
        platform_routes.health_routes,
        platform_routes.run_routes,
    ]
    for router in [*routers, *([page_routes] if ui else [])]:
        # As they are: `include_router` would build each of them a second time, while the first request waits.
        app.router.routes.extend(router.routes)
    if ui:
        add_page(app, listens=bool(service.transcription))
    _describe(app, service.identity.mode)
    return app


def _describe(app: FastAPI, mode: Mode) -> None:
    generate = app.openapi

    def complete() -> dict[str, Any]:
        document = generate()
        if "security" not in document:
            document["security"] = [*([{}] if mode == "open" else []), *({name: []} for name in SCHEMES)]
            _complete(document)
        return document

    app.openapi = complete


def _complete(document: dict[str, Any]) -> None:
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
