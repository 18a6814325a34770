"""What the handlers of local Core share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from aiohttp import web

from task.local_core.access import AccessRules, BucketIds
from task.local_core.callers import IDENTITY, Keys
from task.local_core.clock import Clock
from task.local_core.config import CoreConfig, Deployment, Entry
from task.local_core.config_source import ConfigSource
from task.local_core.relay import Relay, ResponseHooks
from task.local_core.responses import Refusal
from task.local_core.storage import Store

_E = TypeVar("_E", bound=Entry)


class ServedModel(Protocol):
    """A model that local Core serves itself."""

    @property
    def name(self) -> str: ...

    async def respond(
        self, request: web.Request, document: Mapping[str, Any], hooks: ResponseHooks
    ) -> web.StreamResponse: ...


@dataclass(slots=True)
class Core:
    """One local Core.

    `blocked` is Core 0.25's memory of failed applications, in seconds of the `clock`; `throttled` holds the
    `Retry-After` of models that a test has throttled.
    """

    source: ConfigSource
    keys: Keys
    buckets: BucketIds
    access: AccessRules
    store: Store
    relay: Relay
    clock: Clock
    max_file_bytes: int
    core025: bool
    models: Sequence[ServedModel] = ()
    blocked: dict[str, float] = field(default_factory=dict[str, float])
    throttled: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def config(self) -> CoreConfig:
        """The configuration as it is now."""
        return self.source.current()


CORE: web.AppKey[Core] = web.AppKey("core", Core)


def usable(request: web.Request, entry: _E | None, unknown: str = "", forbidden: str = "") -> _E:
    """The entry of the configuration. Raises: Refusal 404 without one, 403 where the caller may not use it."""
    if entry is None:
        raise Refusal(404, unknown)
    if not request[IDENTITY].may_use(entry.user_roles):
        raise Refusal(403, forbidden)
    return entry


def deployment_of(request: web.Request) -> Deployment:
    """The deployment whose id stands in the path. Raises: Refusal 404 or 403."""
    return usable(request, request.app[CORE].config.deployment(request.match_info["id"]))
