"""How local Core is set up, and what its handlers share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from aiohttp import web

from task.local.core.access import KEY_SECONDS, PRINCIPAL, AccessRules, BucketIds, PerRequestKeys
from task.local.core.config import CoreConfig, Deployment, ListedEntry
from task.local.core.config_source import ConfigSource
from task.local.core.models import ModelChoice
from task.local.core.relay import IDLE_SECONDS, Relay, ResponseHooks
from task.local.core.responses import Refusal
from task.local.core.storage import FileStore

_E = TypeVar("_E", bound=ListedEntry)


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """How local Core is set up.

    The configuration is `config`, then `config_files` merged over it in order. `${env:NAME}` in it is looked up in
    `environment`. `image_model` names the deployment that makes pictures beside a chosen `model`. `api_key` is the
    installation's key; None takes the one in `data_folder`, created on the first start. `host_map` replaces host names
    in the configuration's addresses. `max_upload` and `max_body` are bytes, of file uploads (multipart) and of other
    requests. `key_seconds`, `idle_seconds`, `clock` (in seconds) and `unsigned_tokens` are for tests.
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
    keep_alive_seconds: float = 330
    max_upload: int = 512 * 2**20
    max_body: int = 64 * 2**20
    key_seconds: float = KEY_SECONDS
    idle_seconds: float = IDLE_SECONDS
    clock: Callable[[], float] = time.monotonic
    unsigned_tokens: bool = False


class ServedModel(Protocol):
    """A model that local Core serves itself."""

    @property
    def name(self) -> str: ...

    async def respond(
        self, request: web.Request, document: Mapping[str, Any], hooks: ResponseHooks
    ) -> web.StreamResponse: ...


class Core:
    """One local Core.

    `blocked` is Core 0.25's memory of applications that failed, until when in seconds of the settings' clock.
    """

    def __init__(self, settings: CoreSettings, source: ConfigSource, buckets: BucketIds) -> None:
        self.core025 = settings.core025
        self.settings = settings
        self.source = source
        self.buckets = buckets
        self.access = AccessRules(buckets)
        self.keys = PerRequestKeys(settings.clock, None if settings.core025 else settings.key_seconds)
        self.relay = Relay(settings.idle_seconds)
        self.store = FileStore(settings.data_folder / "files")
        self.models: list[ServedModel] = []
        self.blocked: dict[str, float] = {}

    @property
    def config(self) -> CoreConfig:
        """The current configuration."""
        return self.source.current()


CORE: web.AppKey[Core] = web.AppKey("core", Core)


def usable(request: web.Request, entry: _E | None, unknown: str = "", forbidden: str = "") -> _E:
    """The entry of the configuration. Raises: Refusal 404 without one, 403 where the caller may not use it."""
    if entry is None:
        raise Refusal(404, unknown)
    if not request[PRINCIPAL].may_use(entry.user_roles):
        raise Refusal(403, forbidden)
    return entry


def deployment_of(request: web.Request) -> Deployment:
    """The deployment whose id is in the path. Raises: Refusal 404 or 403."""
    return usable(request, request.app[CORE].config.deployment(request.match_info["id"]))
