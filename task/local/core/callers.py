"""Who calls local Core: a project, a user, or an application with the key of one request; and those keys."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aiohttp import web

from task.local.core.clock import Clock
from task.local.core.responses import Refusal

KEY_SECONDS = 1800.0
ADMIN_ROLE = "admin"

Access = Literal["READ", "READ_WRITE"]


@dataclass(slots=True)
class PerRequestKey:
    """What Core remembers with the key that it creates for one call of a deployment.

    `attached` maps canonical relative URLs (`files/{bucket}/{path}`, folders end in `/`) to the access they give.
    `granted` holds, by receiving deployment, the access that the application grants to what it calls next.
    `expires_at` is in seconds of the application's clock.
    """

    value: str
    initiator: Identity
    deployment: str
    execution_path: tuple[str, ...]
    expires_at: float
    conversation_id: str = ""
    job_title: str = ""
    attached: dict[str, Access] = field(default_factory=dict[str, Access])
    granted: dict[str, dict[str, Access]] = field(default_factory=dict[str, dict[str, Access]])

    @property
    def identity(self) -> Identity:
        """The caller that the key stands for: its initiator, acting through an application."""
        return replace(self.initiator, key=self)


@dataclass(frozen=True, slots=True)
class Identity:
    """The root caller: `owner` is the bucket location `Keys/{project}/` or `Users/{sub}/`.

    With `key`, the request comes from the application that the key was created for; owner, roles and claims are then
    the initiator's.
    """

    owner: str
    roles: tuple[str, ...]
    project: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any])
    key: PerRequestKey | None = None

    def may_use(self, allowed: frozenset[str] | None) -> bool:
        """Whether one of the roles is among the `allowed` ones; None allows everybody."""
        return allowed is None or not allowed.isdisjoint(self.roles)

    def check_admin(self, reason: str = "") -> None:
        """Raises: Refusal 403; an application never acts as an administrator, whatever its caller is."""
        if self.key is not None or ADMIN_ROLE not in self.roles:
            raise Refusal(403, reason)


IDENTITY: web.RequestKey[Identity] = web.RequestKey("identity", Identity)


class Keys:
    """The live per-request keys. `ttl` is in seconds; None keeps a key until its response has ended, as Core 0.25."""

    def __init__(self, clock: Clock, ttl: float | None = KEY_SECONDS) -> None:
        self._clock = clock
        self._ttl = float("inf") if ttl is None else ttl
        self._live: dict[str, PerRequestKey] = {}

    @contextmanager
    def created(
        self, request: web.Request, deployment: str, attached: Mapping[str, Access] | None = None
    ) -> Generator[PerRequestKey]:
        """A key for one call of `deployment`, which ends with the block; a nested call keeps the root caller and
        lengthens the path."""
        caller, parent = request[IDENTITY], request[IDENTITY].key
        granted = parent.granted.get(deployment, {}) if parent else {}
        key = PerRequestKey(
            value=secrets.token_urlsafe(24),
            initiator=replace(caller, key=None),
            deployment=deployment,
            execution_path=(*(parent.execution_path if parent else ()), deployment),
            expires_at=self._clock.now() + self._ttl,
            conversation_id=parent.conversation_id if parent else request.headers.get("X-CONVERSATION-ID", ""),
            job_title=parent.job_title if parent else request.headers.get("X-JOB-TITLE", ""),
            attached={**granted, **(attached or {})},
        )
        self._live[key.value] = key
        try:
            yield key
        finally:
            self.end(key)

    def find(self, value: str) -> PerRequestKey | None:
        key = self._live.get(value)
        if key is not None and key.expires_at <= self._clock.now():
            self.end(key)
            return None
        return key

    def end(self, key: PerRequestKey) -> None:
        self._live.pop(key.value, None)

    def add_rights(self, key: PerRequestKey, urls: Iterable[str], access: Access) -> None:
        """Let the key reach canonical `urls` and renew it; existing rights never shrink."""
        for url in urls:
            if key.attached.get(url) != "READ_WRITE":
                key.attached[url] = access
        self.renew(key)

    def renew(self, key: PerRequestKey) -> None:
        key.expires_at = self._clock.now() + self._ttl

    def live(self) -> list[PerRequestKey]:
        return [key for key in self._live.values() if key.expires_at > self._clock.now()]
