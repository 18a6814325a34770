"""Who may read and write which file: a user, or an application with the key of one request."""

from __future__ import annotations

from task.local_core.buckets import BucketIds
from task.local_core.identity import Access, Identity, PerRequestKey
from task.local_core.urls import PUBLIC_BUCKET, ResourceUrl, encode_segment, parse


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
        owner = self._buckets.owner_of(resource.bucket)
        if identity.key is None:
            return "READ_WRITE" if owner == identity.owner else None
        if owner == f"Keys/{identity.key.deployment}/":
            return "READ_WRITE"
        if owner == identity.owner and _is_appdata(identity.key.deployment, resource):
            return "READ_WRITE"
        return _attached(identity.key, resource)


def _is_appdata(deployment: str, resource: ResourceUrl) -> bool:
    home = ("appdata", *deployment.split("/"))
    return ResourceUrl(resource.type, resource.bucket, home, is_folder=True).contains(resource)


def _attached(key: PerRequestKey, resource: ResourceUrl) -> Access | None:
    wanted = resource.url
    grants = {
        access
        for url, access in key.attached.items()
        if url == wanted or (url.endswith("/") and wanted.startswith(url))
    }
    if "READ_WRITE" in grants:
        return "READ_WRITE"
    return "READ" if grants else None
