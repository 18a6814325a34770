"""Local Core as one aiohttp application: its routes, what guards them, and the process that serves it."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from task.errors import SettingsError
from task.llm.chat_request import profile_for
from task.llm.openai import OpenAIChatModel
from task.llm.transport import new_session
from task.local.core import files, forwarding, listings
from task.local.core.access import PRINCIPAL, AccessRules, PerRequestKeys, Principal
from task.local.core.config import KEY_VARIABLE, ConfigSource, CoreConfig, expanded, with_installation_key
from task.local.core.core import CORE, Core, CoreSettings
from task.local.core.images import ImageServer
from task.local.core.models import ConnectedModel, UpstreamModel, with_choice
from task.local.core.responses import PlainResponse, Refusal
from task.local.core.served import ChatModelServer, UpstreamServer
from task.local.core.storage import FileStore
from task.settings.installation import installation_secret

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0
OPEN_PATH = "/health"
LOCAL_HOSTS = frozenset({"localhost", "core", "host.docker.internal"})
TOO_LARGE = "Request body is too large"

_FILE = r"files/{tail:[\s\S]*}"  # a decoded path may hold line breaks, unlike `.`


async def _health(_: web.Request) -> web.Response:
    return PlainResponse(200)


ROUTES = [
    web.get(OPEN_PATH, _health),
    web.post(
        r"/{slashes:/*}openai/deployments/{id:.+?}/{operation:chat/completions|completions|embeddings}",
        forwarding.complete,
    ),
    web.get("/openai/{section:models|deployments|applications}", listings.list_entries),
    web.get("/openai/{section:models|deployments|applications}/{id:.+}", listings.show_entry),
    web.get("/v1/user/info", listings.show_user),
    web.get("/v1/bucket", files.show_bucket),
    web.put(f"/v1/{_FILE}", files.write),
    web.get(f"/v1/{_FILE}", files.read),
    web.delete(f"/v1/{_FILE}", files.delete),
    web.get(f"/v1/metadata/{_FILE}", files.describe),
    web.post("/v1/ops/resource/{operation:move}", files.transfer),
    web.get("/v1/deployments/{id:.+}/configuration", forwarding.call_feature),
    web.post("/v1/{id:.+}/rate", forwarding.call_feature),
]
SINCE_025 = [
    web.post("/v1/ops/resource/{operation:copy}", files.transfer),
    web.get("/openai/{section:toolsets}", listings.list_entries),
    web.get("/openai/{section:toolsets}/{id:.+}", listings.show_entry),
    web.get("/v1/deployment-names", listings.list_names),
    *(web.route(method, "/v1/toolset/{id:.+}/mcp", forwarding.call_toolset) for method in ("GET", "POST", "DELETE")),
]


def create_app(settings: CoreSettings) -> web.Application:
    """The application. Raises: SettingsError for a public address without `allow_public` or a bad configuration."""
    if not (settings.allow_public or settings.host == "localhost" or is_loopback(settings.host)):
        reason = "others could reach it; use 127.0.0.1 or allow it explicitly"
        raise SettingsError(f"local Core does not listen on {settings.host}: {reason}")
    source = ConfigSource(settings.config_files, settings.config, lambda document: _prepared(document, settings))
    access = AccessRules(installation_secret(settings.data_folder / "bucket_secret").encode())
    # The buckets of all who may store files are known before they have asked for theirs.
    config = source.current()
    for owner in {entry.project for entry in config.keys.values()} | config.applications.keys() | config.models.keys():
        access.id_of(f"Keys/{owner}/")

    async def lifespan(_: web.Application) -> AsyncIterator[None]:
        async with AsyncExitStack() as opened:
            session = await opened.enter_async_context(new_session(settings.idle_seconds))
            keys = PerRequestKeys(settings.clock, None if settings.core025 else settings.key_seconds)
            core = Core(settings, source, access, keys, FileStore(settings.data_folder / "files"), session)
            app[CORE] = replace(core, models=await _served_models(core, opened))
            yield

    app = web.Application(middlewares=[guard], client_max_size=settings.max_body)
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(lifespan)
    app.add_routes(ROUTES if settings.core025 else ROUTES + SINCE_025)
    return app


def _prepared(document: dict[str, Any], settings: CoreSettings) -> CoreConfig:
    environment = {**settings.environment, KEY_VARIABLE: settings.api_key}
    document = with_installation_key(expanded(document, environment, settings.host_map), settings.api_key)
    config = CoreConfig.model_validate(document)
    return with_choice(config, settings.model, settings.image_model) if settings.model else config


async def _served_models(
    core: Core, opened: AsyncExitStack
) -> tuple[ChatModelServer | UpstreamServer | ImageServer, ...]:
    choice, image_model = core.settings.model, core.settings.image_model
    if choice is None:
        return ()
    session, store = core.session, core.store
    chat: ChatModelServer | UpstreamServer
    if isinstance(choice, ConnectedModel):
        model = await opened.enter_async_context(choice.connect())
        chat = ChatModelServer(choice.name, model, None if choice.reads_attachments else store)
    elif (choice.profile or profile_for(choice.name, choice.base_url)).text_calls:  # looked for in the model's text
        model = OpenAIChatModel(session, choice.base_url, choice.api_key or "", choice.name, choice.profile)
        chat = ChatModelServer(choice.name, model, store)
    else:
        chat = UpstreamServer(choice, session, store)
    if not image_model:
        return (chat,)
    upstream = choice if isinstance(choice, UpstreamModel) else None
    return chat, ImageServer(image_model, upstream, core.session, core.store, core.access, core.keys)


@web.middleware
async def guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Checks requests in Core's order.

    Local Core listens where a browser can reach it, so a page of a foreign site must neither read nor write through
    it, and a name that was rebound to loopback must not open it.
    """
    started = time.monotonic()
    try:
        _check_sender(request)
        if request.method == "OPTIONS":
            return PlainResponse(200, headers={"Access-Control-Max-Age": "86400"})
        missing = request.method == "HEAD" or request.match_info.http_exception is not None
        if request.path != OPEN_PATH or missing:
            request[PRINCIPAL] = _principal_of(request.app[CORE], request.headers)
            if missing:  # only a caller with a key learns which routes there are
                raise Refusal(502, "No route")
        response = await handler(request)
    except Refusal as refusal:
        response = refusal.response()
    except web.HTTPRequestEntityTooLarge:
        response = PlainResponse(413, TOO_LARGE)
    except (ConnectionError, asyncio.IncompleteReadError, web.RequestPayloadError):
        response = PlainResponse(422, "Failed to receive body")
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "(no route)"
    logger.info("%s %s %d %.3f s", request.method, route, response.status, time.monotonic() - started)
    return response


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Remove aiohttp's default type from plain responses, and let pages of allowed origins read all (CORS).

    It is a response-prepare signal.
    """
    if isinstance(response, PlainResponse):
        response.headers.popall("Content-Type", None)
    if _origin_is_allowed(request):
        cors = {"Origin": "*"}
        for requested, name in (("Method", "Methods"), ("Headers", "Headers")):
            if wanted := request.headers.get(f"Access-Control-Request-{requested}"):
                cors[name] = wanted
        response.headers.update({f"Access-Control-Allow-{name}": value for name, value in cors.items()})
        response.headers["Access-Control-Expose-Headers"] = "etag"


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address; names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_sender(request: web.Request) -> None:
    settings = request.app[CORE].settings
    host = _hostname(f"//{request.headers.get('Host', '')}")
    if host not in LOCAL_HOSTS | settings.allowed_hosts and not is_loopback(host):
        raise Refusal(403, "Host is not allowed")
    if not _origin_is_allowed(request):
        raise Refusal(403, "Origin is not allowed")
    multipart = request.content_type.startswith("multipart/")
    if (request.content_length or 0) > (settings.max_upload if multipart else settings.max_body):
        raise Refusal(413, TOO_LARGE)


def _origin_is_allowed(request: web.Request) -> bool:
    origin = request.headers.get("Origin")
    if origin is None or origin in request.app[CORE].settings.allowed_origins:
        return True
    host = _hostname(origin)
    return host == "localhost" or is_loopback(host)


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _principal_of(core: Core, headers: Mapping[str, str]) -> Principal:
    key = headers.get("Api-Key", "")
    authorization = headers.get("Authorization")
    if not key and authorization is None:
        raise Refusal(401, "At least API-KEY or Authorization header must be provided")
    scheme, _, value = (authorization or "").strip().partition(" ")
    bearer = value.strip() if scheme.lower() == "bearer" else scheme
    if key and bearer and bearer != key:
        raise Refusal(400, "Either API-KEY or Authorization header must be provided but not both")
    if (user := core.settings.user_of(bearer)) is not None:
        return user
    value = key if core.settings.core025 else key or bearer  # only today's Core accepts a key as a bearer value
    if (own := core.keys.find(value)) is not None:
        return replace(own.initiator, key=own)
    for known, entry in core.config.keys.items():
        if hmac.compare_digest(known.encode(), value.encode()):
            return Principal(f"Keys/{entry.project}/", entry.all_roles, entry.project)
    raise Refusal(401, "Unknown api key" if key else "Bad Authorization header")


def serve(settings: CoreSettings) -> None:
    """Serve until interrupted. Raises: SettingsError when the settings are bad."""
    app, options = create_app(settings), runner_options(settings)
    if sys.platform != "win32":
        import uvloop

        options["loop"] = uvloop.new_event_loop()
    web.run_app(app, host=settings.host, port=settings.port, print=None, **options)


def runner_options(settings: CoreSettings) -> dict[str, Any]:
    """How the server runs; a client that leaves ends its handler."""
    return {
        "handler_cancellation": True,
        "keepalive_timeout": settings.keep_alive_seconds,
        "access_log": None,
        "shutdown_timeout": SHUTDOWN_SECONDS,
    }
