"""The HTTP front door as one application, made from the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from starlette.responses import Response

from task.api.edge.failures import failure_of, tell_failures
from task.api.edge.guard import Guard, Rules
from task.api.edge.identity import Identity
from task.api.edge.openapi import describe
from task.api.engine import Engine
from task.api.openai.completions import Answers
from task.api.openai.files import FileShelf
from task.api.openai.incoming import MessageReader
from task.api.openai.responses_routes import responses_routes
from task.api.openai.routes import openai_routes
from task.api.platform.deciding import Deciding
from task.api.platform.preparing import Preparing
from task.api.platform.routes import platform_routes
from task.api.platform.run_routes import run_routes
from task.api.platform.runner import Runner
from task.api.service import Service
from task.api.web.page import add_page
from task.api.web.routes import markdown_routes
from task.connection import Connection
from task.settings import Settings
from task.store.access import StoreAccess
from task.tools.base import BaseTool

ABOUT = (
    "The agent for every program that speaks OpenAI, for platforms that compare agents, and for the web page. Keys are "
    "sent as `Authorization: Bearer KEY`; in the mode `open` none is needed."
)


class HttpApi:
    """The front door: `app` answers requests, `close` ends its runs."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        http = settings.http
        key = settings.dial_api_key.get_secret_value() if settings.dial_api_key else ""
        shelf = FileShelf(engine.connection, settings.dial_endpoint, settings.limits.max_upload_bytes)
        self.runner = Runner(engine)
        service = Service(
            engine,
            Identity(http.mode, key, engine.store, engine.connection, http.requests_per_minute),
            self.runner,
            Answers(self.runner, engine.heartbeat_seconds),
            Preparing(engine),
            MessageReader(shelf),
            shelf,
            Deciding(engine),
        )
        upload = settings.limits.max_upload_bytes
        rules = Rules(http.mode == "open", http.hosts, http.origins, http.body_bytes, upload)
        self.app = Guard(_application(service, ui=http.ui), rules)

    async def close(self) -> None:
        await self.runner.close()


def http_api(
    settings: Settings,
    connection: Callable[[], Connection],
    tools: Callable[[], Awaitable[list[BaseTool]]],
    prompt: Callable[[], Awaitable[str]],
    store: StoreAccess,
) -> HttpApi:
    """The HTTP front door of the agent that has these models, tools, words and memory."""
    engine = Engine(
        connection,
        tools,
        prompt,
        store,
        settings.deployment_name,
        settings.http.steps,
        settings.http.detach_seconds,
        settings.heartbeat_seconds,
        settings.deployments.image,
    )
    return HttpApi(settings, engine)


def _application(service: Service, *, ui: bool) -> FastAPI:
    app = FastAPI(title="General purpose agent", version="1", description=ABOUT, docs_url=None, redoc_url=None)
    tell_failures(app)
    routers = [openai_routes, responses_routes, platform_routes, run_routes, *([markdown_routes] if ui else [])]
    for routes in routers:
        # As they are: `include_router` would build each of them a second time, while the first request waits.
        app.router.routes.extend(routes(service).routes)
    if ui:
        add_page(app)
    describe(app, service.identity.mode)

    async def unexpected(_: Request, error: Exception) -> Response:
        return failure_of(error).response()

    app.add_exception_handler(500, unexpected)
    return app
