"""Local Core as one aiohttp application, its routes for tests, and the process that serves it."""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from task.errors import SettingsError
from task.local.core.access import BucketIds
from task.local.core.callers import IDENTITY
from task.local.core.completions import completion_routes
from task.local.core.config import CoreConfig
from task.local.core.config_source import KEY_VARIABLE, ConfigSource, expanded, with_installation_key
from task.local.core.core import CORE, Core, CoreSettings
from task.local.core.files import file_routes
from task.local.core.forwarding import feature_routes
from task.local.core.guard import add_cors, guard, is_loopback
from task.local.core.images import ImageServer, painter_of, with_image_model
from task.local.core.listings import chat_routes, listing_routes
from task.local.core.models import ConnectedModel, ModelChoice, UpstreamModel, UpstreamServer, with_choice
from task.local.core.permissions import permission_routes
from task.local.core.responses import PlainResponse, json_response
from task.local.core.served import ChatModelServer, connected_lifespan, embedded_lifespan
from task.local.core.toolsets import toolset_routes
from task.local.model.server import EmbeddedModel
from task.settings.installation import installation_secret

VERSION = "0.46.0 (local stand-in)"
VERSION_025 = "0.25.1 (local stand-in)"
SHUTDOWN_SECONDS = 2.0


def installation_key(data_folder: Path, given: str | None = None) -> str:
    """The project key that local Core accepts: the given one, else a random one kept in the data folder."""
    return given or installation_secret(data_folder / "api_key")


def create_app(settings: CoreSettings) -> web.Application:
    """The application. Raises: SettingsError for a public address without `allow_public` or a bad configuration."""
    _check_address(settings)
    source = ConfigSource(settings.config_files, settings.config, lambda document: _prepared(document, settings))
    core = Core(settings, source, _buckets(settings, source.current()))

    async def lifespan(_: web.Application) -> AsyncIterator[None]:
        yield
        await core.relay.close()

    app = web.Application(middlewares=[guard], client_max_size=settings.max_body)
    app[CORE] = core
    app.on_response_prepare.append(add_cors)
    app.cleanup_ctx.append(lifespan)
    if settings.model is not None:
        _serve_model(settings.model, settings.image_model, app)
    app.add_routes(_own_routes())
    app.add_routes(completion_routes())
    app.add_routes(file_routes(core025=core.core025))
    app.add_routes(listing_routes(core025=core.core025))
    app.add_routes(feature_routes())
    app.add_routes(chat_routes(core025=core.core025))
    if not core.core025:
        app.add_routes(permission_routes())
        app.add_routes(toolset_routes())
    if settings.test_hooks:
        app.add_routes(hook_routes())
    return app


def serve(settings: CoreSettings) -> None:
    """Serve until interrupted. Raises: SettingsError when the settings are bad or the port is taken."""
    app = create_app(settings)
    try:
        web.run_app(
            app, host=settings.host, port=settings.port, print=None, **runner_options(settings), **_loop_option()
        )
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


def _own_routes() -> list[web.RouteDef]:
    return [
        web.get("/health", _health, allow_head=False),
        web.get("/version", _version, allow_head=False),
        web.post("/v1/ops/config/reload", _reload),
    ]


async def _health(_: web.Request) -> web.Response:
    return PlainResponse(200)


async def _version(request: web.Request) -> web.Response:
    return web.Response(text=VERSION_025 if request.app[CORE].core025 else VERSION)


async def _reload(request: web.Request) -> web.Response:
    # The configuration as it is now, without callers' keys and upstreams' secrets; for administrators
    request[IDENTITY].check_admin()
    hidden = {"keys": True, "models": {"__all__": {"upstreams": True}}, "routes": True}
    return json_response(request, request.app[CORE].config.model_dump(mode="json", by_alias=False, exclude=hidden))


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
    buckets = BucketIds(secret.encode(), settings.data_folder / "bucket_owners.jsonl")
    projects = {entry.project for entry in config.keys.values()}
    for owner in sorted(projects | config.applications.keys() | config.models.keys()):
        buckets.id_of(f"Keys/{owner}/")
    return buckets


def _serve_model(choice: ModelChoice, image: str | None, app: web.Application) -> None:
    core = app[CORE]
    if image:
        core.models.append(ImageServer(image, painter_of(choice, image), core.store, core.buckets))
    if isinstance(choice, ConnectedModel) or (isinstance(choice, UpstreamModel) and choice.writes_calls):
        app.cleanup_ctx.append(connected_lifespan(choice))
    elif isinstance(choice, UpstreamModel):
        core.models.append(UpstreamServer(choice, core.relay, core.store))
    elif isinstance(choice, EmbeddedModel):
        app.cleanup_ctx.append(embedded_lifespan(choice))
    else:
        from task.llm.scripted import ScriptedModel

        core.models.append(ChatModelServer(choice.name, ScriptedModel.from_file(choice.path)))


def _check_address(settings: CoreSettings) -> None:
    if settings.allow_public or settings.host == "localhost" or is_loopback(settings.host):
        return
    raise SettingsError(
        f"local Core does not listen on {settings.host}: others could reach it; use 127.0.0.1 or allow it explicitly"
    )


def _loop_option() -> dict[str, Any]:
    if sys.platform == "win32":
        return {}
    import uvloop

    return {"loop": uvloop.new_event_loop()}


def hook_routes() -> list[web.RouteDef]:
    return [
        web.get("/_test/keys", _list_keys),
        web.post("/_test/clock", _advance),
        web.post("/_test/faults", _throttle),
    ]


async def _list_keys(request: web.Request) -> web.Response:
    live = [{**asdict(key), "initiator": key.initiator.owner} for key in request.app[CORE].keys.live()]
    return json_response(request, live)


async def _advance(request: web.Request) -> web.Response:
    request.app[CORE].clock.advance((await request.json())["advance"])
    return json_response(request, {})


async def _throttle(request: web.Request) -> web.Response:
    # Refuse later calls of a model with this `Retry-After`; without one they are let through again
    fault, throttled = await request.json(), request.app[CORE].throttled
    throttled.pop(fault["deployment"], None)
    if "throttle" in fault:
        throttled[fault["deployment"]] = fault["throttle"]
    return json_response(request, {})
