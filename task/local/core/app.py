"""Local Core as one aiohttp application, and the process that serves it."""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from task.errors import SettingsError
from task.llm.transport import new_session
from task.local.core.access import BucketIds
from task.local.core.completions import completion_routes
from task.local.core.config import CoreConfig
from task.local.core.config_source import KEY_VARIABLE, ConfigSource, expanded, with_installation_key
from task.local.core.core import CORE, Core, CoreSettings
from task.local.core.files import file_routes
from task.local.core.forwarding import forwarding_routes
from task.local.core.guard import add_cors, guard, is_loopback
from task.local.core.images import ImageServer, painter_of, with_image_model
from task.local.core.listings import listing_routes
from task.local.core.models import ConnectedModel, ModelChoice, ScriptedDemo, with_choice
from task.local.core.responses import PlainResponse
from task.local.core.served import ChatModelServer
from task.local.core.upstream import PlainMessages, UpstreamServer
from task.settings.installation import installation_secret

VERSION = "0.46.0 (local stand-in)"
VERSION_025 = "0.25.1 (local stand-in)"
SHUTDOWN_SECONDS = 2.0


def installation_key(data_folder: Path, given: str | None = None) -> str:
    """The project key that local Core accepts: the given one, else a random one kept in the data folder."""
    return given or installation_secret(data_folder / "api_key")


def create_app(settings: CoreSettings) -> web.Application:
    """The application. Raises: SettingsError for a public address without `allow_public` or a bad configuration."""
    if not (settings.allow_public or settings.host == "localhost" or is_loopback(settings.host)):
        reason = "others could reach it; use 127.0.0.1 or allow it explicitly"
        raise SettingsError(f"local Core does not listen on {settings.host}: {reason}")
    source = ConfigSource(settings.config_files, settings.config, lambda document: _prepared(document, settings))
    core = Core(settings, source, _buckets(settings, source.current()))

    async def lifespan(_: web.Application) -> AsyncIterator[None]:
        if settings.image_model and settings.model is not None:
            painter = painter_of(settings.model, settings.image_model)
            core.models.append(ImageServer(settings.image_model, painter, core.store, core.buckets))
        async with _served(settings.model, core):
            yield
        await core.relay.close()

    app = web.Application(middlewares=[guard], client_max_size=settings.max_body)
    app[CORE] = core
    app.on_response_prepare.append(add_cors)
    app.cleanup_ctx.append(lifespan)
    app.add_routes([web.get("/health", _health, allow_head=False), web.get("/version", _version, allow_head=False)])
    app.add_routes(completion_routes())
    app.add_routes(file_routes(core025=core.core025))
    app.add_routes(listing_routes(core025=core.core025))
    app.add_routes(forwarding_routes(core025=core.core025))
    return app


@asynccontextmanager
async def _served(choice: ModelChoice | None, core: Core) -> AsyncGenerator[None]:
    if choice is None:
        yield
    elif isinstance(choice, ConnectedModel):
        plain = None if choice.reads_attachments else PlainMessages(core.store)
        async with choice.connect() as chat:
            core.models.append(ChatModelServer(choice.name, chat, plain))
            yield
    elif isinstance(choice, ScriptedDemo):
        from task.llm.scripted import ScriptedModel

        core.models.append(ChatModelServer(choice.name, ScriptedModel.from_file(choice.path)))
        yield
    elif choice.writes_calls:
        async with new_session() as session:
            core.models.append(ChatModelServer(choice.name, choice.chat_model(session), PlainMessages(core.store)))
            yield
    else:
        core.models.append(UpstreamServer(choice, core.relay, core.store))
        yield


def serve(settings: CoreSettings) -> None:
    """Serve until interrupted. Raises: SettingsError when the settings are bad or the port is taken."""
    app, options = create_app(settings), runner_options(settings)
    if sys.platform != "win32":
        import uvloop

        options["loop"] = uvloop.new_event_loop()
    try:
        web.run_app(app, host=settings.host, port=settings.port, print=None, **options)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise SettingsError(
            f"port {settings.port} is in use; stop the process that listens there or choose another"
        ) from None


def runner_options(settings: CoreSettings) -> dict[str, Any]:
    """How the server runs; a client that leaves ends its handler."""
    return {
        "handler_cancellation": True,
        "keepalive_timeout": settings.keep_alive_seconds,
        "access_log": None,
        "shutdown_timeout": SHUTDOWN_SECONDS,
    }


async def _health(_: web.Request) -> web.Response:
    return PlainResponse(200)


async def _version(request: web.Request) -> web.Response:
    return web.Response(text=VERSION_025 if request.app[CORE].core025 else VERSION)


def _prepared(document: dict[str, Any], settings: CoreSettings) -> CoreConfig:
    key = installation_key(settings.data_folder, settings.api_key)
    environment = {**settings.environment, KEY_VARIABLE: key}
    document = with_installation_key(expanded(document, environment, settings.host_map), key)
    config = CoreConfig.model_validate(document)
    if settings.model is None:
        return config
    chosen = with_choice(config, settings.model)
    return with_image_model(config, chosen, settings.image_model, settings.model) if settings.image_model else chosen


def _buckets(settings: CoreSettings, config: CoreConfig) -> BucketIds:
    secret = installation_secret(settings.data_folder / "bucket_secret")
    buckets = BucketIds(secret.encode())
    # The buckets of all who may store files are known before they have asked for theirs.
    projects = {entry.project for entry in config.keys.values()}
    for owner in projects | config.applications.keys() | config.models.keys():
        buckets.id_of(f"Keys/{owner}/")
    return buckets
