"""Local Core as one aiohttp application, and the process that serves it."""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from aiohttp import web

from task.errors import SettingsError
from task.local_core import resources
from task.local_core.access import AccessRules
from task.local_core.admin import Administration
from task.local_core.auth import Authenticator
from task.local_core.buckets import BucketIds
from task.local_core.chat_calls import ChatCalls
from task.local_core.clock import Clock
from task.local_core.completions import Completions, LocalModel
from task.local_core.config import CoreConfig
from task.local_core.config_source import KEY_VARIABLE, ConfigSource, expanded, with_hosts, with_installation_key
from task.local_core.demo import DemoServed
from task.local_core.features import FeatureCalls
from task.local_core.images import ImagesServed, with_image_model
from task.local_core.keys import TTL_SECONDS, Keys
from task.local_core.listings import Listings
from task.local_core.models import ModelChoice, ScriptedDemo, UpstreamServed, with_choice
from task.local_core.painters import painter_of
from task.local_core.permissions import Permissions
from task.local_core.refusal import PlainAnswer
from task.local_core.relay import IDLE_SECONDS, Relay
from task.local_core.routes import Routes
from task.local_core.storage import Store
from task.local_core.testing_hooks import Injected, TestingHooks
from task.local_core.toolsets import Toolsets
from task.local_core.transport import BodyLimits, Doorkeeper, is_loopback
from task.local_model.model import EmbeddedModel
from task.settings.installation import installation_secret

VERSION = "0.46.0 (local stand-in)"
VERSION_025 = "0.25.1 (local stand-in)"
SHUTDOWN_SECONDS = 2.0


@runtime_checkable
class Living(Protocol):
    """A model of local Core's own that starts and ends with it."""

    def lifespan(self, app: web.Application) -> AsyncIterator[None]: ...


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """How local Core is set up.

    The configuration is `config`, then `config_files` merged over it in order. `${env:NAME}` in it is looked up in
    `environment`. `image_model` names the deployment that makes pictures beside a chosen `model`. `api_key` is the
    installation's key; None takes the one in `data_folder`, made on the first start. `host_map` replaces host names in
    the configuration's addresses. `unsigned_tokens` and `test_hooks` are for tests.
    """

    data_folder: Path
    config_files: tuple[Path, ...] = ()
    config: Mapping[str, Any] | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    allow_public: bool = False
    api_key: str | None = None
    model: ModelChoice | None = None
    image_model: str | None = None
    host_map: Mapping[str, str] = field(default_factory=dict[str, str])
    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    core025: bool = False
    limits: BodyLimits = field(default_factory=BodyLimits)
    idle_seconds: float = IDLE_SECONDS
    key_seconds: float = TTL_SECONDS
    clock: Clock = field(default_factory=Clock)
    test_hooks: bool = False
    unsigned_tokens: bool = False


def installation_key(data_folder: Path, given: str | None = None) -> str:
    """The project key that local Core accepts: the given one, else a random one kept in the data folder."""
    return given or installation_secret(data_folder / "api_key")


def create_app(settings: CoreSettings) -> web.Application:
    """The application. Raises: SettingsError for a public address without `allow_public` or a bad configuration."""
    _check_address(settings)
    source = ConfigSource(settings.config_files, settings.config, lambda document: _prepared(document, settings))
    injected = Injected()
    relay = Relay(settings.clock, injected, settings.idle_seconds)
    keys = Keys(settings.clock, None if settings.core025 else settings.key_seconds)
    buckets = _buckets(settings, source.current())
    access = AccessRules(buckets)
    store = Store(settings.data_folder / "files")

    models = _local_models(settings, relay, store, buckets)

    app = _application(settings, source, keys, Routes(source.current, keys, relay), relay)
    app.cleanup_ctx.extend(model.lifespan for model in models if isinstance(model, Living))
    Completions(
        config=source.current,
        keys=keys,
        access=access,
        relay=relay,
        clock=settings.clock,
        injected=injected,
        local_models=models,
        core025=settings.core025,
    ).register(app)
    resources.register(app, store, access, buckets, max_file_size=settings.limits.upload, core025=settings.core025)
    Listings(source.current, settings.core025).register(app)
    FeatureCalls(source.current, keys, relay).register(app)
    ChatCalls(source.current, settings.core025).register(app)
    Administration(source).register(app)
    if not settings.core025:
        Permissions(keys, access).register(app)
        Toolsets(source.current, keys, relay).register(app)
    if settings.test_hooks:
        TestingHooks(settings.clock, keys, injected).register(app)
    return app


def serve(settings: CoreSettings) -> None:
    """Serve until interrupted. Raises: SettingsError when the settings are bad or the port is taken."""
    app = create_app(settings)
    try:
        web.run_app(app, host=settings.host, port=settings.port, print=None, **runner_options(), **_loop_option())
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise SettingsError(f"port {settings.port} is in use; stop what listens there or choose another") from None


def runner_options() -> dict[str, Any]:
    """How the server runs: a caller that leaves ends its handler, and quiet connections last as long as in Core."""
    return {
        "handler_cancellation": True,
        "keepalive_timeout": IDLE_SECONDS,
        "access_log": None,
        "shutdown_timeout": SHUTDOWN_SECONDS,
    }


def _application(
    settings: CoreSettings, source: ConfigSource, keys: Keys, routes: Routes, relay: Relay
) -> web.Application:
    doorkeeper = Doorkeeper(
        Authenticator(
            source.current,
            keys,
            unsigned_tokens=settings.unsigned_tokens,
            bearer_keys=not settings.core025,
        ),
        routes.answer,
        hosts=settings.allowed_hosts,
        origins=settings.allowed_origins,
        limits=settings.limits,
        core025=settings.core025,
    )
    app = web.Application(middlewares=[doorkeeper.middleware()], client_max_size=settings.limits.other)
    app.on_response_prepare.append(doorkeeper.add_cors)
    version = VERSION_025 if settings.core025 else VERSION

    async def health(_: web.Request) -> web.Response:
        return PlainAnswer(200)

    async def version_text(_: web.Request) -> web.Response:
        return web.Response(text=version)

    async def lifespan(_: web.Application) -> AsyncIterator[None]:
        yield
        await relay.close()

    app.router.add_get("/health", health, allow_head=False)
    app.router.add_get("/version", version_text, allow_head=False)
    app.cleanup_ctx.append(lifespan)
    return app


def _prepared(document: dict[str, Any], settings: CoreSettings) -> CoreConfig:
    key = installation_key(settings.data_folder, settings.api_key)
    environment = {**settings.environment, KEY_VARIABLE: key}
    document = with_installation_key(expanded(document, environment), key)
    config = CoreConfig.model_validate(with_hosts(document, settings.host_map))
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


def _local_models(settings: CoreSettings, relay: Relay, store: Store, buckets: BucketIds) -> list[LocalModel]:
    choice, image = settings.model, settings.image_model
    if choice is None:
        return []
    models = [_chat_model(choice, relay, store)]
    return [*models, ImagesServed(image, painter_of(choice, image), store, buckets)] if image else models


def _chat_model(choice: ModelChoice, relay: Relay, store: Store) -> LocalModel:
    if isinstance(choice, EmbeddedModel):
        from task.local_core.embedded_model import EmbeddedServed

        return EmbeddedServed(choice)
    if isinstance(choice, ScriptedDemo):
        from task.llm.scripted import ScriptedModel

        return DemoServed(ScriptedModel.from_file(choice.path), choice.name)
    return UpstreamServed(choice, relay, store)


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
