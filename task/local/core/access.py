"""Who calls local Core, and whose files they may read and write: a user, or an application with a per-request key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aiohttp import web

from task.local.core.urls import PUBLIC_BUCKET, ResourceUrl, encode_segment, parse

KEY_SECONDS = 1800.0

_ID_LENGTH = 32

Access = Literal["READ", "READ_WRITE"]


@dataclass(slots=True)
class PerRequestKey:
    """What Core remembers with the key that it creates for one call of a deployment.

    `attached` maps canonical relative URLs (`files/{bucket}/{path}`, folders end in `/`) to the access they give.
    `expires_at` is in seconds of the clock that `PerRequestKeys` has.
    """

    value: str
    initiator: Principal
    deployment: str
    execution_path: tuple[str, ...]
    expires_at: float
    attached: dict[str, Access] = field(default_factory=dict[str, Access])

    @property
    def principal(self) -> Principal:
        """The caller that the key stands for: its initiator, acting through an application."""
        return replace(self.initiator, key=self)


@dataclass(frozen=True, slots=True)
class Principal:
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


PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)


class PerRequestKeys:
    """The live keys. `ttl` is in seconds; None keeps a key until its response has ended, as Core 0.25 does."""

    def __init__(self, clock: Callable[[], float], ttl: float | None = KEY_SECONDS) -> None:
        self._clock = clock
        self._ttl = float("inf") if ttl is None else ttl
        self._live: dict[str, PerRequestKey] = {}

    @contextmanager
    def created(
        self, caller: Principal, deployment: str, attached: Mapping[str, Access] | None = None
    ) -> Generator[PerRequestKey]:
        """A key for one call of `deployment`, which ends with the block; a nested call keeps the root caller and
        lengthens the path."""
        path = caller.key.execution_path if caller.key else ()
        key = PerRequestKey(
            value=secrets.token_urlsafe(24),
            initiator=replace(caller, key=None),
            deployment=deployment,
            execution_path=(*path, deployment),
            expires_at=self._clock() + self._ttl,
            attached=dict(attached or {}),
        )
        self._live[key.value] = key
        try:
            yield key
        finally:
            self.end(key)

    def find(self, value: str) -> PerRequestKey | None:
        key = self._live.get(value)
        if key is not None and key.expires_at <= self._clock():
            self.end(key)
            return None
        return key

    def end(self, key: PerRequestKey) -> None:
        self._live.pop(key.value, None)

    def add_rights(self, key: PerRequestKey, urls: Iterable[str]) -> None:
        """Let the key read and write canonical `urls`, and renew it."""
        key.attached.update(dict.fromkeys(urls, "READ_WRITE"))
        key.expires_at = self._clock() + self._ttl

    def live(self) -> list[PerRequestKey]:
        return [key for key in self._live.values() if key.expires_at > self._clock()]


class BucketIds:
    """Stable, opaque bucket ids by owner, and owners by bucket id.

    An owner is a location such as `Keys/{project}/` or `Users/{sub}/`, and becomes known through `id_of`.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._owners = {PUBLIC_BUCKET: f"{PUBLIC_BUCKET}/"}

    def id_of(self, owner: str) -> str:
        """The bucket of an owner; the same every time for the same secret."""
        digest = hmac.new(self._secret, owner.encode(errors="surrogatepass"), hashlib.sha256)
        bucket = digest.hexdigest()[:_ID_LENGTH]
        self._owners[bucket] = owner
        return bucket

    def owner_of(self, bucket: str) -> str | None:
        """The owner of this bucket, None for an unknown one; `public/` owns the public bucket."""
        return self._owners.get(bucket)


class AccessRules:
    """Core's rules, by whole names.

    A user has their own bucket and reads the public one. An application called by that user has its own bucket, its
    folder `appdata/{application}` in the user's bucket and what was attached to its key, and reads the public bucket.

    All URLs are relative resource URLs; `urls.InvalidUrl` is raised for others.
    """

    def __init__(self, buckets: BucketIds) -> None:
        self._buckets = buckets

    def may_read(self, principal: Principal, url: str) -> bool:
        resource = parse(url)
        return resource.bucket == PUBLIC_BUCKET or self._granted(principal, resource) is not None

    def may_write(self, principal: Principal, url: str) -> bool:
        return self._granted(principal, parse(url)) == "READ_WRITE"

    def appdata_of(self, principal: Principal) -> str:
        """The folder of the calling application in the user's bucket: `{bucket}/appdata/{encoded application}`.

        Raises:
            ValueError: the caller is not an application.
        """
        if principal.key is None:
            raise ValueError("only an application with a per-request key has an appdata folder")
        folder = "/".join(encode_segment(part) for part in principal.key.deployment.split("/"))
        return f"{self._buckets.id_of(principal.owner)}/appdata/{folder}"

    def _granted(self, principal: Principal, resource: ResourceUrl) -> Access | None:
        owner, key = self._buckets.owner_of(resource.bucket), principal.key
        if key is None:
            return "READ_WRITE" if owner == principal.owner else None
        home = ("appdata", *key.deployment.split("/"))
        appdata = ResourceUrl(resource.type, resource.bucket, home, is_folder=True)
        if owner == f"Keys/{key.deployment}/" or (owner == principal.owner and appdata.contains(resource)):
            return "READ_WRITE"
        wanted = resource.url
        grants = {
            access
            for url, access in key.attached.items()
            if url == wanted or (url.endswith("/") and wanted.startswith(url))
        }
        if "READ_WRITE" in grants:
            return "READ_WRITE"
        return "READ" if grants else None
