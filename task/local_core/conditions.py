"""Decide by `If-Match` and `If-None-Match` whether a request about a stored file goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from task.local_core.refusal import Refusal
from task.local_core.storage import StoredFile


@dataclass(frozen=True, slots=True)
class Conditions:
    """A request's conditions: unquoted etags, or `*`. They only speak about a resource that exists."""

    if_match: frozenset[str]
    if_none_match: frozenset[str]

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        return cls(_etags(headers.get("If-Match", "")), _etags(headers.get("If-None-Match", "")))

    def check_change(self, stored: StoredFile | None) -> None:
        """Let a write or deletion pass, or raise the 412 that stops it."""
        if stored is None:
            return
        self._check_match(stored)
        if "*" in self.if_none_match:
            raise Refusal(412, "Resource already exists")
        if stored.etag in self.if_none_match:
            raise Refusal(412, f"If-none-match condition is failed for etag: {stored.etag}")

    def check_download(self, stored: StoredFile) -> None:
        """Let a download pass, or raise the 412 or 304 that answers it."""
        self._check_match(stored)
        if not self.if_none_match.isdisjoint({"*", stored.etag}):
            raise Refusal(304, headers={"ETag": stored.etag})

    def _check_match(self, stored: StoredFile) -> None:
        if self.if_match and self.if_match.isdisjoint({"*", stored.etag}):
            raise Refusal(412, f"If-match condition is failed for etag: {stored.etag}")


def _etags(header: str) -> frozenset[str]:
    return frozenset(etag for part in header.split(",") if (etag := part.strip().strip('"')))
