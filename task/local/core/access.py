"""Whose files and applications a caller may read and write, by their URLs in Core: `files/{bucket}/{path}`.

A caller is a user, or an application with a per-request key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import quote, unquote

from aiohttp import web

from task.local.core.responses import Refusal

PUBLIC_BUCKET = "public"
MAX_PATH_BYTES = 900
KEY_SECONDS = 1800.0
_ID_LENGTH = 32
_UNESCAPED = "-._~!$'()*,;&=@:+"
_ENCODED_SEGMENT = re.compile(r"(?:[A-Za-z0-9\-._~!$'()*,;&=@:+]|%[0-9A-Fa-f]{2}|[^\x00-\x7f])+")
_BUCKET = re.compile(r"[A-Za-z0-9]+")
_ILLEGAL_CHARACTER = re.compile(r"[\x00-\x1f/{}]")
Access = Literal["READ", "READ_WRITE"]
KINDS = frozenset({"files", "applications"})


@dataclass(frozen=True, slots=True)
class FileUrl:
    """A parsed URL. `segments` are the decoded names below the bucket; a bucket's root is a folder without segments."""

    bucket: str
    segments: tuple[str, ...]
    is_folder: bool
    kind: str = "files"

    @property
    def name(self) -> str | None:
        return self.segments[-1] if self.segments else None

    @property
    def path(self) -> str:
        """The decoded path below the bucket; a folder's ends in `/`, the root's is empty."""
        joined = "/".join(self.segments)
        return f"{joined}/" if self.is_folder and joined else joined

    @property
    def url(self) -> str:
        """The canonical, encoded, relative URL."""
        encoded = "/".join(encode_segment(segment) for segment in self.segments)
        return f"{self.kind}/{self.bucket}/{encoded}{'/' if self.is_folder and encoded else ''}"


def encode_segment(segment: str) -> str:
    """One name, percent-encoded the way Core writes it into URLs."""
    return quote(segment, safe=_UNESCAPED)


def parse(url: str) -> FileUrl:
    """The file, application or folder that a relative URL, such as `files/{bucket}/{path}`, names.

    Raises:
        Refusal: 400 with Core's text, for a URL that breaks one of its rules.
    """
    kind, _, rest = url.partition("/")
    if kind not in KINDS:
        raise Refusal(400, f"Url has unsupported resource type: {url}")
    bucket, slash, path = rest.partition("/")
    if not slash or not _BUCKET.fullmatch(bucket):
        raise Refusal(400, f"Url has invalid bucket: {url}")
    segments: list[str] = []
    for segment in path.removesuffix("/").split("/") if path else ():
        try:
            name = unquote(segment, errors="strict")
        except UnicodeDecodeError as error:
            raise Refusal(400, f"Invalid path provided {url}") from error
        # "." and ".." are ordinary names to Core, but every client and proxy on the way resolves them.
        if not _ENCODED_SEGMENT.fullmatch(segment) or name in {".", ".."} or _ILLEGAL_CHARACTER.search(name):
            raise Refusal(400, f"Invalid path provided {url}")
        segments.append(name)
    parsed = FileUrl(bucket, tuple(segments), not path or path.endswith("/"), kind)
    if len(parsed.path.encode()) > MAX_PATH_BYTES:
        raise Refusal(400, f"Resource path exceeds max allowed size: {MAX_PATH_BYTES}")
    return parsed


@dataclass(slots=True)
class PerRequestKey:
    """What Core remembers with the key that it creates for one call of a deployment.

    `attached` maps canonical relative URLs (`files/{bucket}/{path}`, folders end in `/`) to the access they give.
    `expires_at` is in seconds of the clock that `PerRequestKeys` has.
    """

    value: str
    initiator: Principal
    deployment: str
    expires_at: float
    attached: dict[str, Access] = field(default_factory=dict[str, Access])


@dataclass(frozen=True, slots=True)
class Principal:
    """The root caller: `owner` is the bucket location `Keys/{project}/` or `Users/{sub}/`.

    With `key`, the request comes from the application that the key was created for; owner and roles are then the
    initiator's.
    """

    owner: str
    roles: tuple[str, ...]
    project: str | None = None
    key: PerRequestKey | None = None

    @property
    def author(self) -> str:
        return self.owner.partition("/")[2].removesuffix("/")

    def may_use(self, allowed: frozenset[str] | None) -> bool:
        """Whether one of the roles is among the `allowed` ones; None allows every role."""
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
        """A key for one call of `deployment`, which ends with the block; a nested call keeps the root caller."""
        value, initiator = secrets.token_urlsafe(24), replace(caller, key=None)
        key = PerRequestKey(value, initiator, deployment, self._clock() + self._ttl, dict(attached or {}))
        self._live[value] = key
        try:
            yield key
        finally:
            self._live.pop(value, None)

    def find(self, value: str) -> PerRequestKey | None:
        key = self._live.get(value)
        return key if key is not None and key.expires_at > self._clock() else None

    def add_rights(self, key: PerRequestKey, home: str, urls: Iterable[str]) -> None:
        """Let the key read and write those of the canonical `urls` that are below `home`, and renew it."""
        if added := [url for url in urls if url.startswith(home)]:
            key.attached.update(dict.fromkeys(added, "READ_WRITE"))
            key.expires_at = self._clock() + self._ttl


class AccessRules:
    """Who owns which bucket, and what a caller may do there.

    Ids are stable and opaque. An owner is a location such as `Keys/{project}/` or `Users/{sub}/`, and becomes known
    through `id_of`. `shared` has the canonical URLs that others share with an owner; local Core itself shares nothing.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._owners = {PUBLIC_BUCKET: f"{PUBLIC_BUCKET}/"}
        self.shared: dict[str, dict[str, Access]] = {}

    def id_of(self, owner: str) -> str:
        """The bucket of an owner; the same every time for the same secret."""
        digest = hmac.new(self._secret, owner.encode(errors="surrogatepass"), hashlib.sha256)
        bucket = digest.hexdigest()[:_ID_LENGTH]
        self._owners[bucket] = owner
        return bucket

    def owner_of(self, bucket: str) -> str | None:
        """The owner of this bucket, None for an unknown one; `public/` owns the public bucket."""
        return self._owners.get(bucket)

    def appdata_of(self, owner: str, deployment: str) -> str:
        """The folder of an application in its user's bucket: `{bucket}/appdata/{encoded application}`."""
        folder = "/".join(encode_segment(part) for part in deployment.split("/"))
        return f"{self.id_of(owner)}/appdata/{folder}"

    def granted(self, caller: Principal, resource: FileUrl) -> Access | None:
        """What the caller may do with a file or folder, by whole names.

        Users have their own bucket and what is shared with them, and read the public one. An application called by
        that user has its own bucket, its folder `appdata/{application}` in the user's bucket and what was attached to
        its key, and reads what is public or shared with the user.
        """
        if resource.bucket == PUBLIC_BUCKET:
            return "READ"
        key, wanted, shared = caller.key, resource.url, self.shared.get(caller.owner, {})
        grants: dict[str, Access]
        if key is None:
            grants = {**shared, **{f"{kind}/{self.id_of(caller.owner)}/": "READ_WRITE" for kind in KINDS}}
        else:
            grants = {
                **dict.fromkeys(shared, "READ"),
                f"files/{self.id_of(f'Keys/{key.deployment}/')}/": "READ_WRITE",
                f"files/{self.appdata_of(caller.owner, key.deployment)}/": "READ_WRITE",
                **key.attached,
            }
        found = {
            access for url, access in grants.items() if url == wanted or (url.endswith("/") and wanted.startswith(url))
        }
        return "READ_WRITE" if "READ_WRITE" in found else "READ" if found else None

    def require(self, caller: Principal, resource: FileUrl, wanted: Access) -> None:
        """Check that the caller may do that. Raises: Refusal 403."""
        if self.granted(caller, resource) not in (wanted, "READ_WRITE"):
            raise Refusal(403, f"You don't have an access to: {resource.url}")
