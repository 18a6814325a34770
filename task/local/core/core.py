"""How local Core is set up, and what its handlers share."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, TypeVar

from aiohttp import ClientSession, web

from task.local.core.access import KEY_SECONDS, PRINCIPAL, AccessRules, PerRequestKeys, Principal
from task.local.core.config import CoreConfig, ListedEntry
from task.local.core.images import ImageServer
from task.local.core.models import ModelChoice
from task.local.core.responses import Refusal
from task.local.core.served import ChatModelServer, UpstreamServer
from task.local.core.storage import FileStore

IDLE_SECONDS = 300.0
NEWEST = 49
ModelServer = ChatModelServer | UpstreamServer | ImageServer
_E = TypeVar("_E", bound=ListedEntry)


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """How local Core is set up.

    The configuration is `config`, then `config_files` merged over it in order. `${env:NAME}` in it is looked up in
    `environment`. `image_model` names the deployment that makes pictures beside a chosen `model`. `api_key` is the
    installation's key, a random one unless given. `host_map` replaces host names in the configuration's addresses.
    It behaves like Core 0.{version}. `max_upload` and `max_body` are bytes, of file uploads (multipart) and of other
    requests. `key_seconds`, `idle_seconds`, `clock` (in seconds) and `user_of`, which knows the user of a bearer token,
    are for tests: local Core has no identity provider.
    """

    data_folder: Path
    config_files: tuple[Path, ...] = ()
    config: Mapping[str, Any] | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    allow_public: bool = False
    api_key: str = field(default_factory=token_urlsafe)
    model: ModelChoice | None = None
    image_model: str | None = None
    host_map: Mapping[str, str] = field(default_factory=dict[str, str])
    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    version: int = NEWEST
    keep_alive_seconds: float = 330
    max_upload: int = 512 * 2**20
    max_body: int = 64 * 2**20
    key_seconds: float = KEY_SECONDS
    idle_seconds: float = IDLE_SECONDS
    clock: Callable[[], float] = time.monotonic
    user_of: Callable[[str], Principal | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Core:
    """One local Core while it serves.

    `blocked` is Core 0.25's memory of applications that failed, until when in seconds of the settings' clock. `types`
    has the application types by their `$id`, once they are downloaded.
    """

    settings: CoreSettings
    config: CoreConfig
    access: AccessRules
    keys: PerRequestKeys
    store: FileStore
    session: ClientSession
    models: tuple[ModelServer, ...] = ()
    blocked: dict[str, float] = field(default_factory=dict[str, float])
    types: dict[str, Any] = field(default_factory=dict[str, Any])


CORE: web.AppKey[Core] = web.AppKey("core", Core)


def usable(request: web.Request, entry: _E | None, unknown: str = "", forbidden: str = "") -> _E:
    """The entry of the configuration. Raises: Refusal 404 without one, 403 where the caller may not use it."""
    if entry is None:
        raise Refusal(404, unknown)
    if not request[PRINCIPAL].may_use(entry.user_roles):
        raise Refusal(403, forbidden)
    return entry
