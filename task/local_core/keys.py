"""Per-request keys: minted for one call of a deployment, dead when that call's answer has ended."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace

from task.local_core.clock import Clock
from task.local_core.identity import Access, Identity, PerRequestKey

TTL_SECONDS = 1800.0


class Keys:
    """The live per-request keys. `ttl` is in seconds; None keeps a key until its answer has ended, as Core 0.25 did."""

    def __init__(self, clock: Clock, ttl: float | None = TTL_SECONDS) -> None:
        self._clock = clock
        self._ttl = float("inf") if ttl is None else ttl
        self._live: dict[str, PerRequestKey] = {}

    def mint(
        self,
        caller: Identity,
        deployment: str,
        headers: Mapping[str, str],
        attached: Mapping[str, Access] | None = None,
    ) -> PerRequestKey:
        """A key for one call of `deployment`; a nested call keeps the root caller and lengthens the path."""
        parent = caller.key
        rights: dict[str, Access] = dict(parent.granted.get(deployment, {})) if parent else {}
        key = PerRequestKey(
            value=secrets.token_urlsafe(24),
            initiator=replace(caller, key=None),
            deployment=deployment,
            execution_path=(*(parent.execution_path if parent else ()), deployment),
            expires_at=self._clock.now() + self._ttl,
            conversation_id=parent.conversation_id if parent else headers.get("X-CONVERSATION-ID", ""),
            job_title=parent.job_title if parent else headers.get("X-JOB-TITLE", ""),
            attached={**rights, **(attached or {})},
        )
        self._live[key.value] = key
        return key

    def find(self, value: str) -> PerRequestKey | None:
        key = self._live.get(value)
        if key is not None and key.expires_at <= self._clock.now():
            self.end(key)
            return None
        return key

    def end(self, key: PerRequestKey) -> None:
        self._live.pop(key.value, None)

    def add_rights(self, key: PerRequestKey, urls: Iterable[str], access: Access) -> None:
        """Let the key reach canonical `urls`; rights that are there never shrink, and the key's life starts anew."""
        for url in urls:
            if key.attached.get(url) != "READ_WRITE":
                key.attached[url] = access
        self.renew(key)

    def renew(self, key: PerRequestKey) -> None:
        key.expires_at = self._clock.now() + self._ttl

    def live(self) -> list[PerRequestKey]:
        return [key for key in self._live.values() if key.expires_at > self._clock.now()]


def identity_of(key: PerRequestKey) -> Identity:
    """The caller that a per-request key stands for: its initiator, acting through an application."""
    return replace(key.initiator, key=key)
