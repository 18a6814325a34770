"""Local Core as one aiohttp application: its routes, what guards them, the process that serves it."""

import asyncio
import hmac
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web, web_protocol, web_server
from aiohttp.http_exceptions import BadHttpMessage

from task.errors import SettingsError
from task.llm.chat_request import profile_for
from task.llm.openai import OpenAIChatModel
from task.llm.transport import is_loopback, new_session
from task.local.core import deployments, files, forwarding
from task.local.core.access import PRINCIPAL, AccessRules, PerRequestKeys, Principal
from task.local.core.config import (
    KEY_VARIABLE,
    expanded,
    load_config,
    with_installation_key,
)
from task.local.core.core import CORE, Core, CoreSettings, ModelServer
from task.local.core.images import ImageServer
from task.local.core.models import ConnectedModel, UpstreamModel, with_choice
from task.local.core.responses import PlainResponse, Refusal
from task.local.core.served import ChatModelServer, UpstreamServer
from task.local.core.storage import FileStore
from task.settings.installation import installation_secret
from task.shares import ON_BEHALF_OF, SharedThreads

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0
OPEN_PATH = "/health"
CONTAINER_HOSTS = frozenset({"core", "host.docker.internal"})
TOO_LARGE, HEAD_TOO_LARGE = "Request body is too large", "Request header fields are too large"
HEAD_BYTES, HEAD_SECONDS = 64 * 2**10, 30.0
_TAIL = r"{tail:[\s\S]*}"  # a decoded path may hold line breaks, unlike `.`


async def report_health(_: web.Request) -> web.Response:
    """200, also without a key."""
    return PlainResponse(200)


_OPERATION = "{operation:chat/completions|completions|embeddings}"
_PUBLISHED = "{section:models|deployments|applications}"
_STORED = f"{{kind:files|applications}}/{_TAIL}"
# By the first version of Core, 0.{number}, that has them.
ROUTES = {
    25: [
        web.get(OPEN_PATH, report_health),
        web.post(f"/{{slashes:/*}}openai/deployments/{{id:.+?}}/{_OPERATION}", forwarding.complete),
        web.get(f"/openai/{_PUBLISHED}", deployments.list_entries),
        web.get(f"/openai/{_PUBLISHED}/{{id:.+}}", deployments.show_entry),
        web.get("/v1/user/info", deployments.show_user),
        web.get("/v1/bucket", files.show_bucket),
        web.put(f"/v1/files/{_TAIL}", files.write),
        web.put(f"/v1/applications/{_TAIL}", deployments.write_application),
        web.get(f"/v1/{_STORED}", files.read),
        web.delete(f"/v1/{_STORED}", files.delete),
        web.get(f"/v1/metadata/{_STORED}", files.describe),
        web.post("/v1/ops/resource/{operation:move}", files.transfer),
        web.get("/v1/deployments/{id:.+}/configuration", forwarding.call_feature),
        web.post("/v1/{id:.+}/rate", forwarding.call_feature),
    ],
    37: [
        web.post("/v1/ops/resource/{operation:copy}", files.transfer),
        web.get("/openai/{section:toolsets}", deployments.list_entries),
        web.get("/openai/{section:toolsets}/{id:.+}", deployments.show_entry),
        web.route("*", "/v1/{section:toolset}/{id:.+}/mcp", forwarding.call_mcp),
    ],
    43: [web.route("*", "/v1/{section:deployments}/{id:.+}/mcp", forwarding.call_mcp)],
    49: [web.get("/v1/deployment-names", deployments.list_names)],
}


def create_app(settings: CoreSettings) -> web.Application:
    """The application. Raises: SettingsError for a public address without `allow_public` or a bad configuration."""
    if not (settings.allow_public or is_loopback(settings.host)):
        reason = "others could reach it; use 127.0.0.1 or allow it explicitly"
        raise SettingsError(f"local Core does not listen on {settings.host}: {reason}")

    def filled_in(document: dict[str, Any]) -> dict[str, Any]:
        environment = {**settings.environment, KEY_VARIABLE: settings.api_key}
        return with_installation_key(expanded(document, environment, settings.host_map), settings.api_key)

    config = load_config(settings.config_files, settings.config, filled_in)
    if settings.model is not None:
        config = with_choice(config, settings.model, settings.image_model)
    access = AccessRules(installation_secret(settings.data_folder / "bucket_secret").encode())
    # The buckets of all who may store files are known before they have asked for theirs.
    for owner in {entry.project for entry in config.keys.values()} | config.applications.keys() | config.models.keys():
        access.id_of(f"Keys/{owner}/")

    async def lifespan(_: web.Application) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(SharedThreads())
        async with AsyncExitStack() as opened:
            session = await opened.enter_async_context(new_session(settings.idle_seconds))
            keys = PerRequestKeys(settings.clock, None if settings.version <= 25 else settings.key_seconds)
            core = Core(settings, config, access, keys, FileStore(settings.data_folder / "files", access), session)
            app[CORE] = replace(core, models=await _served_models(core, opened))
            yield

    app = web.Application(middlewares=[guard], client_max_size=settings.max_body)
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(lifespan)
    app.add_routes([route for since, routes in ROUTES.items() if settings.version >= since for route in routes])
    return app


async def _served_models(core: Core, opened: AsyncExitStack) -> tuple[ModelServer, ...]:
    choice, image_model = core.settings.model, core.settings.image_model
    if choice is None:
        return ()
    session, store = core.session, core.store
    chat: ModelServer
    if isinstance(choice, ConnectedModel):
        model = await opened.enter_async_context(choice.connect())
        chat = ChatModelServer(choice.name, model, None if choice.reads_attachments else store)
    elif (choice.profile or profile_for(choice.name, choice.base_url)).text_calls:  # looked for in the model's text
        model = OpenAIChatModel(session, choice.base_url, choice.api_key or "", choice.name, choice.profile)
        chat = ChatModelServer(choice.name, model, store)
    else:
        chat = UpstreamServer(choice.name, choice, session, store)
    if not image_model:
        return (chat,)
    upstream = choice if isinstance(choice, UpstreamModel) else None
    return chat, ImageServer(image_model, upstream, session, store, core.access, core.keys)


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
            request[PRINCIPAL] = user = _principal_of(request.app[CORE], request.headers)
            ON_BEHALF_OF.set(user.owner)
            if missing:  # only a caller with a key learns which routes there are
                raise Refusal(502, "No route")
        response = await handler(request)
    except Refusal as refusal:
        response = refusal.response()
    except web.HTTPRequestEntityTooLarge:
        response = PlainResponse(413, TOO_LARGE)
    except (ConnectionError, asyncio.IncompleteReadError, web.RequestPayloadError):
        response = PlainResponse(422, "Failed to receive body")
    route = resource.canonical if (resource := request.match_info.route.resource) else "(no route)"
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


def _check_sender(request: web.Request) -> None:
    settings = request.app[CORE].settings
    if sum(len(name) + len(value) for name, value in request.raw_headers) > HEAD_BYTES:
        raise Refusal(431, HEAD_TOO_LARGE)
    host = _hostname(f"//{request.headers.get('Host', '')}")
    if host not in CONTAINER_HOSTS | settings.allowed_hosts and not is_loopback(host):
        raise Refusal(403, "Host is not allowed")
    if not _origin_is_allowed(request):
        raise Refusal(403, "Origin is not allowed")
    multipart = request.content_type.startswith("multipart/")
    if (request.content_length or 0) > (settings.max_upload if multipart else settings.max_body):
        raise Refusal(413, TOO_LARGE)


def _origin_is_allowed(request: web.Request) -> bool:
    origin = request.headers.get("Origin")
    return origin is None or origin in request.app[CORE].settings.allowed_origins or is_loopback(_hostname(origin))


def _hostname(url: str) -> str:
    with suppress(ValueError):
        return urlsplit(url).hostname or ""
    return ""


def _principal_of(core: Core, headers: Mapping[str, str]) -> Principal:
    key, authorization = headers.get("Api-Key", ""), headers.get("Authorization", "")
    if not key and "Authorization" not in headers:
        raise Refusal(401, "At least API-KEY or Authorization header must be provided")
    scheme, _, value = authorization.strip().partition(" ")
    bearer = value.strip() if scheme.lower() == "bearer" else scheme
    if key and bearer and bearer != key:
        raise Refusal(400, "Either API-KEY or Authorization header must be provided but not both")
    if (user := core.settings.user_of(bearer)) is not None:
        return user
    value = key if core.settings.version <= 25 else key or bearer  # only today's Core accepts a key as a bearer value
    if (own := core.keys.find(value)) is not None:
        return replace(own.initiator, key=own)
    for known, entry in core.config.keys.items():
        if hmac.compare_digest(known.encode(), value.encode()):
            return Principal(f"Keys/{entry.project}/", entry.all_roles, entry.project)
    raise Refusal(401, "Unknown api key" if key else "Bad Authorization header")


class CoreConnection(web_protocol.RequestHandler):
    """aiohttp's own, which bounds each line and their number, but answers with a 400 and a traceback in the log, and
    waits minutes for the end of a head."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._loop.call_later(HEAD_SECONDS, lambda: self._request_count or self.force_close())

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if not (isinstance(exc, BadHttpMessage) and exc.message.startswith(("Got more than", "Too many headers"))):
            return super().handle_error(request, status, exc, message)
        response = PlainResponse(431, HEAD_TOO_LARGE)
        response.force_close()
        return response


web_server.RequestHandler = CoreConnection  # type: ignore[misc]  # aiohttp has no setting for the class


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
