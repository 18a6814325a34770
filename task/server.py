"""The agent's one ASGI process."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from aidial_sdk import DIALApp
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from task.app import GeneralPurposeAgentApplication, default_tools
from task.fast_chunks import dial_app, sdk_version
from task.settings import Settings

DEPLOYMENT = "general-purpose-agent"


class BearerAsApiKey:
    """Lets callers that come without Core give their key as a bearer token, as the specification shows it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            if b"api-key" not in headers and scheme.lower() == b"bearer" and token:
                scope = {**scope, "headers": [*scope["headers"], (b"api-key", token.strip())]}
        await self._app(scope, receive, send)


def create_app(settings: Settings) -> DIALApp:
    """The application with all its doors; `/health` says the process lives, `/ready` that it can answer."""
    application = GeneralPurposeAgentApplication(settings=settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        application.connection()  # its TLS context would cost the first request 30 ms
        yield
        await application.close()

    app = dial_app(
        fast=settings.fast_chunks,
        sdk=sdk_version(),
        dial_url=settings.dial_endpoint,
        add_healthcheck=True,
        allow_extra_request_fields=True,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.add_chat_completion(DEPLOYMENT, application, heartbeat_interval=settings.heartbeat_seconds)
    app.add_middleware(BearerAsApiKey)

    async def ready() -> dict[str, Any]:
        tools = await application.offered_tools()
        return {"status": "ready", "model": settings.deployment_name, "tools": [tool.name for tool in tools]}

    app.add_api_route("/ready", ready, methods=["GET"])
    return app


def run(settings: Settings) -> None:
    """Serve until a signal ends it.

    Raises:
        SettingsError: before the port is opened, when the settings' tools cannot be loaded.
    """
    default_tools(settings)
    logging.basicConfig(level=settings.log_level, format="%(levelname)s %(name)s %(message)s")
    for noisy in ("httpx", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)  # a line for every request to Core and to a server
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        http="httptools",
        loop="auto",
        log_level=settings.log_level.lower(),
        access_log=False,
        timeout_graceful_shutdown=10,
    )
