"""The agent's one ASGI process."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from aidial_sdk import DIALApp
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from task.api.app import HttpApi, HttpOptions
from task.api.connections import BoundedConnection
from task.api.failures import failure_of
from task.api.guard import APPLICATION_SCHEMA
from task.app import GeneralPurposeAgentApplication
from task.dial.fast_chunks import FastDialApp
from task.dial.request import DialRoute
from task.errors import SettingsError, StoreUnavailable, StoreVersionError
from task.product import Profile, Services, check
from task.product.backends import BACKENDS
from task.product.health import Health
from task.product.opening import metrics_of
from task.product.parts import default_tools
from task.settings import PREFIX, Settings
from task.shares import SharedThreads
from task.skills import READ_SKILL
from task.telemetry.logs import set_up_logging
from task.tools.rag.rag_tool import RagTool
from task.tools.toolbox import named

if TYPE_CHECKING:
    from task.telemetry.metrics import PrometheusMetrics

DEPLOYMENT = "general-purpose-agent"
SCHEMA_SECONDS = 2.0  # for the names of servers' tools in the schema of applications
COUNTING_SECONDS = 15.0  # between two counts of the questions that wait
# Of the garbage collector: new objects before it looks at them, such looks before it looks at what they left, and those
# before it looks at everything, which it does in between answers instead. A request makes thousands that live until its
# end, which Python's own 700 would look at in vain; freeing 10,000 of a call's, in cycles, holds all streams for 30 ms.
COLLECTIONS = (2_500, 5, 320)
COLLECTING_SECONDS, WORTH = 1.0, 8  # between two looks whether there were so many of the second kind
LOADING = 3  # passes over everything in which what was loaded at its first use is still found
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedPort:
    """What a worker shares with the others: the port, and how many of how many are ready; `joined` counts it in."""

    listener: socket.socket
    joined: Callable[[], None]
    ready: Callable[[], tuple[int, int]]


def create_app(
    settings: Settings,
    warmed_up: Callable[[], None] = lambda: None,
    metrics: PrometheusMetrics | None = None,
    shared: SharedPort | None = None,
    refuse: Callable[[str], None] = lambda _: None,
) -> ASGIApp:
    """The application with all its doors; `/health` reports that the process lives, `/ready` that it can answer.

    It serves while what later requests need is still loading; `warmed_up` is called after that. `refuse` is called with
    the reason when it turns out that this version cannot use the store.

    Called inside the event loop.

    Raises:
        SettingsError: a setting would break the first request.
    """
    check(settings)
    asyncio.get_running_loop().set_default_executor(SharedThreads())
    metrics = metrics or metrics_of(settings)
    application = GeneralPurposeAgentApplication(settings=settings, metrics=metrics)
    services, profile = application.opened
    http, key = settings.http.model_dump(), settings.dial_api_key
    http |= {"transcription": settings.http.transcription or ""}
    http |= {"editor_core": settings.http.editor_core or settings.dial_endpoint}
    options = HttpOptions(
        **http,
        core_key=key.get_secret_value() if key else "",
        upload_bytes=settings.limits.max_upload_bytes,
        behind_core=BACKENDS[settings.backend].of_core,
        dial_bytes=settings.dial_body_bytes,
        heartbeat_seconds=settings.heartbeat_seconds,
    )
    api = HttpApi(services, profile, options)

    app = (FastDialApp if settings.fast_chunks else DIALApp)(
        dial_url=settings.dial_endpoint,
        add_healthcheck=True,
        allow_extra_request_fields=True,
        lifespan=lambda _: _lifespan(services, api, shared, _warm_up(services, metrics, warmed_up, refuse)),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.router.route_class = DialRoute
    app.add_exception_handler(500, _failed)
    app.add_chat_completion(DEPLOYMENT, application, heartbeat_interval=settings.heartbeat_seconds)
    _add_routes(app, services, profile, shared, metrics)
    app.router.default = api.app  # a mount would answer paths with a line break itself, in another shape
    return api.guarded(app)


def _add_routes(
    app: FastAPI, services: Services, profile: Profile, shared: SharedPort | None, metrics: PrometheusMetrics | None
) -> None:
    async def application_schema() -> Response:
        tools = list(profile.tools)
        with suppress(TimeoutError):  # without what a server does not list in time: Core waits for five seconds
            tools += (await asyncio.wait_for(services.mcp.discover(None, named(tools)), SCHEMA_SECONDS)).tools
        named_in = [*(tool.name for tool in tools), *([READ_SKILL] if profile.skills else [])]
        own = [name for name in named_in if profile.rules.policy.offers(name)]
        return JSONResponse(services.applications.bounds.application_schema(own))

    health = Health(services, profile)
    app.add_api_route(APPLICATION_SCHEMA, application_schema, methods=["GET"])

    async def alive() -> Response:
        return Response()

    async def ready() -> Response:
        report = await health.report()
        degraded = list(report.degraded)
        body: dict[str, Any] = {
            "status": "not ready" if report.reasons else "ready",
            "model": profile.model,
            "tools": [tool.name for tool in report.tools],
            "reasons": report.reasons,
            "degraded": degraded,
        }
        search = next((tool for tool in profile.tools if isinstance(tool, RagTool)), None)
        if search is not None:
            body["search_in_documents"] = (await search.state()).text
        if shared is not None:
            count, most = shared.ready()
            body["workers"] = {"ready": count, "of": most}
            degraded += [f"{count} of {most} workers are ready"] if count < most else []
        return JSONResponse(body, 503 if report.reasons else 200)

    app.add_api_route("/health", alive, methods=["HEAD"])  # the SDK's own route has GET only
    app.add_api_route("/ready", ready, methods=["GET"])
    if metrics is not None:

        async def figures() -> Response:
            text = await asyncio.to_thread(metrics.render)
            return Response(text, media_type="text/plain; version=0.0.4")

        app.add_api_route("/metrics", figures, methods=["GET"])


@asynccontextmanager
async def _lifespan(
    services: Services, api: HttpApi, shared: SharedPort | None, warm_up: Coroutine[Any, Any, None]
) -> AsyncGenerator[None]:
    beside = {asyncio.create_task(warm_up), asyncio.create_task(_collect())}
    if shared is not None:
        shared.joined()
    yield
    for task in beside:
        task.cancel()
    await asyncio.wait(beside)
    await api.close()
    await services.close()


async def _warm_up(
    services: Services, metrics: PrometheusMetrics | None, warmed_up: Callable[[], None], refuse: Callable[[str], None]
) -> None:
    try:
        await services.warm_up()
    finally:
        warmed_up()
    while not services.store.refused:
        store = await services.store.get_if_available()
        if store is not None and metrics is not None:
            with suppress(StoreUnavailable):
                metrics.waiting(await store.approvals.waiting())
        await asyncio.sleep(COUNTING_SECONDS)
    refuse(services.store.refused)


async def _collect() -> None:
    passes, took = 0, 0.0
    while True:
        # A pass over what many open conversations hold takes a hundredth of the time, too.
        await asyncio.sleep(max(COLLECTING_SECONDS, 100 * took))
        if gc.get_count()[2] < WORTH:
            continue
        started = time.thread_time()
        gc.collect()
        passes, took = passes + 1, time.thread_time() - started
        if passes <= LOADING:
            gc.freeze()


async def _failed(_: Request, error: Exception) -> Response:
    return failure_of(error).response()


def keep_what_is_loaded() -> None:
    """Exempt everything loaded so far from garbage collection: each full pass over it would pause all streams for a
    tenth of a second."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(*COLLECTIONS)


def serve_metrics(metrics: PrometheusMetrics, host: str, port: int, agent_port: int) -> None:
    """Answer metrics on a port of their own. Raises `SettingsError` where it is taken, or the agent's."""
    fix = "Choose another port, or leave it out."
    if port == agent_port != 0:  # workers share that port, so that it would not be found taken
        raise SettingsError(f"{PREFIX}METRICS__PORT: {port} is the agent's own port. {fix}")
    try:
        metrics.serve(host, port)
    except OSError as error:
        raise SettingsError(f"{PREFIX}METRICS__PORT: {port} cannot be listened on: {error.strerror}. {fix}") from error


def run(settings: Settings, shared: SharedPort | None = None) -> None:
    """Serve until a signal ends it, on a port of its own or one that is shared.

    Raises:
        SettingsError: before the port is listened on, when something that the settings name cannot be used.
        StoreVersionError: this version cannot use the store, which is found out after that.
    """
    refusals = list[str]()

    def refuse(reason: str) -> None:
        refusals.append(reason)
        server.should_exit = True

    default_tools(settings)
    set_up_logging(settings.log_level, settings.log_file, as_json=settings.log_format == "json")
    if settings.for_the_console:
        logger.warning("settings without effect here, for the console only: %s", "; ".join(settings.for_the_console))
    metrics = metrics_of(settings)
    if metrics is not None and settings.metrics.port is not None:
        serve_metrics(metrics, settings.host, settings.metrics.port, settings.port)
    config = uvicorn.Config(
        # Made inside the event loop, where connections can be opened.
        lambda: create_app(settings, keep_what_is_loaded, metrics, shared, refuse),
        factory=True,
        host=settings.host,
        port=settings.port,
        http=BoundedConnection,
        loop="auto",
        log_level=settings.log_level.lower(),
        log_config=None,
        access_log=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):
        server.run([shared.listener] if shared else None)
    if refusals:
        raise StoreVersionError(refusals[0])
    if not server.started:
        sys.exit(STARTUP_FAILURE)
