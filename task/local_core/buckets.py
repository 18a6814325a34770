"""Give every owner of files a stable, opaque bucket id, and find the owner again."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path

from task.local_core.urls import PUBLIC_BUCKET

_ID_LENGTH = 32


class BucketIds:
    """Bucket ids by owner, and owners by bucket id.

    An owner is a location such as `Keys/{project}/` or `Users/{sub}/`. Owners become known through `id_of`; with a
    `path` they are kept in that file, so that a restart still knows them.
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
        """Whose bucket this is; None when nobody's. The public bucket is owned by `public/`."""
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
