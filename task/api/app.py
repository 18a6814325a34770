"""The HTTP front door as one application, over the one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request
from starlette.responses import Response

from task.api.edge.failures import failure_of, tell_failures
from task.api.edge.guard import Guard, Rules
from task.api.edge.identity import Identity, Mode
from task.api.edge.openapi import describe
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
from task.product import Product

ABOUT = (
    "The agent for every program that speaks OpenAI, for platforms that compare agents, and for the web page. Keys are "
    "sent as `Authorization: Bearer KEY`; in the mode `open` none is needed."
)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What an operator sets of the HTTP door.

    `steps` limits the requests with tools of one run, `detach_seconds` how long a run continues without a listener;
    `core_key` is the agent's own key at DIAL Core, for the modes in which callers have none.
    """

    mode: Mode
    core_key: str
    hosts: Sequence[str]
    origins: Sequence[str]
    body_bytes: int
    upload_bytes: int
    requests_per_minute: int
    ui: bool
    steps: int
    detach_seconds: float
    heartbeat_seconds: float


class HttpApi:
    """The HTTP door of a product: `app` answers requests, `close` ends its runs."""

    def __init__(self, product: Product, options: HttpOptions) -> None:
        shelf = FileShelf(product, options.upload_bytes)
        self.runner = Runner(product, options.steps, options.detach_seconds)
        service = Service(
            product,
            options.heartbeat_seconds,
            Identity(options.mode, options.core_key, product, options.requests_per_minute),
            self.runner,
            Answers(self.runner, options.heartbeat_seconds),
            Preparing(product),
            MessageReader(shelf),
            shelf,
            Deciding(product),
        )
        rules = Rules(options.mode == "open", options.hosts, options.origins, options.body_bytes, options.upload_bytes)
        self.app = Guard(_application(service, ui=options.ui), rules)

    async def close(self) -> None:
        await self.runner.close()


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
