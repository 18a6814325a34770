"""Whose bucket is whose, and who may read and write which file: a user, or an application with a per-request key."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path

from task.local.core.callers import Access, Identity
from task.local.core.urls import PUBLIC_BUCKET, ResourceUrl, encode_segment, parse

_ID_LENGTH = 32


class BucketIds:
    """Stable, opaque bucket ids by owner, and owners by bucket id.

    An owner is a location such as `Keys/{project}/` or `Users/{sub}/`. Owners become known through `id_of`; with a
    `path` they are kept in that file, so that they are known after a restart.
    """

    def __init__(self, secret: bytes, path: Path | None = None) -> None:
        self._secret = secret
        self._path = path
        self._owners = {self._digest(owner): owner for owner in _saved_owners(path)}

    def id_of(self, owner: str) -> str:
        """The bucket of an owner; the same every time for the same secret."""
        bucket = self._digest(owner)
        if bucket not in self._owners:
            self._owners[bucket] = owner
            self._save(owner)
        return bucket

    def owner_of(self, bucket: str) -> str | None:
        """The owner of this bucket, None for an unknown one; `public/` owns the public bucket."""
        return f"{PUBLIC_BUCKET}/" if bucket == PUBLIC_BUCKET else self._owners.get(bucket)

    def _digest(self, owner: str) -> str:
        return hmac.new(self._secret, owner.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:_ID_LENGTH]

    def _save(self, owner: str) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(owner) + "\n")


def _saved_owners(path: Path | None) -> Iterator[str]:
    if path is None or not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            owner = json.loads(line)
        except json.JSONDecodeError:  # a line that was being written when the machine stopped
            continue
        if isinstance(owner, str):
            yield owner


class AccessRules:
    """Core's rules, by whole names.

    A user has their own bucket and reads the public one. An application called by that user has its own bucket, its
    folder `appdata/{application}` in the user's bucket and what was attached to its key, and reads the public bucket.

    All URLs are relative resource URLs; `urls.InvalidUrl` is raised for others.
    """

    def __init__(self, buckets: BucketIds) -> None:
        self._buckets = buckets

    def may_read(self, identity: Identity, url: str) -> bool:
        resource = parse(url)
        return resource.bucket == PUBLIC_BUCKET or self._granted(identity, resource) is not None

    def may_write(self, identity: Identity, url: str) -> bool:
        return self._granted(identity, parse(url)) == "READ_WRITE"

    def appdata_of(self, identity: Identity) -> str:
        """The folder of the calling application in the user's bucket: `{bucket}/appdata/{encoded application}`.

        Raises:
            ValueError: the caller is not an application.
        """
        if identity.key is None:
            raise ValueError("only an application with a per-request key has an appdata folder")
        folder = "/".join(encode_segment(part) for part in identity.key.deployment.split("/"))
        return f"{self._buckets.id_of(identity.owner)}/appdata/{folder}"

    def _granted(self, identity: Identity, resource: ResourceUrl) -> Access | None:
        owner, key = self._buckets.owner_of(resource.bucket), identity.key
        if key is None:
            return "READ_WRITE" if owner == identity.owner else None
        home = ("appdata", *key.deployment.split("/"))
        appdata = ResourceUrl(resource.type, resource.bucket, home, is_folder=True)
        if owner == f"Keys/{key.deployment}/" or (owner == identity.owner and appdata.contains(resource)):
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
