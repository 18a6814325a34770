"""What a request about a file carries: conditions (`If-Match`, `If-None-Match`), a multipart file, a move or copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage
from pydantic import BaseModel, Field, ValidationError

from task.local_core.responses import Refusal
from task.local_core.storage import StoredFile, Upload

_CHUNK_BYTES = 1 << 16
# aiohttp's reader reports a body without its closing boundary by an assertion.
_MALFORMED = (ValueError, AssertionError, BadHttpMessage, web.RequestPayloadError)


@dataclass(frozen=True, slots=True)
class Conditions:
    """A request's conditions: unquoted etags, or `*`. They apply only to a resource that exists."""

    if_match: frozenset[str]
    if_none_match: frozenset[str]

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        return cls(_etags(headers.get("If-Match", "")), _etags(headers.get("If-None-Match", "")))

    def check_change(self, stored: StoredFile | None) -> None:
        """Raises: Refusal 412 where the conditions forbid to write or delete."""
        if stored is None:
            return
        self._check_match(stored)
        if "*" in self.if_none_match:
            raise Refusal(412, "Resource already exists")
        if stored.etag in self.if_none_match:
            raise Refusal(412, f"If-none-match condition is failed for etag: {stored.etag}")

    def check_download(self, stored: StoredFile) -> None:
        """Raises: Refusal 412 or 304 where the conditions forbid a download or make it unnecessary."""
        self._check_match(stored)
        if not self.if_none_match.isdisjoint({"*", stored.etag}):
            raise Refusal(304, headers={"ETag": stored.etag})

    def _check_match(self, stored: StoredFile) -> None:
        if self.if_match and self.if_match.isdisjoint({"*", stored.etag}):
            raise Refusal(412, f"If-match condition is failed for etag: {stored.etag}")


def _etags(header: str) -> frozenset[str]:
    return frozenset(etag for part in header.split(",") if (etag := part.strip().strip('"')))


class Transfer(BaseModel):
    """A move or copy between relative URLs, and whether an existing file may be replaced."""

    source_url: str = Field(alias="sourceUrl")
    destination_url: str = Field(alias="destinationUrl")
    overwrite: bool = False

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Raises: Refusal 400 when the body is something else."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise Refusal(400, "Request body must have sourceUrl and destinationUrl") from error


async def receive_file(request: web.Request, upload: Upload, max_size: int) -> str | None:
    """Write the request's one part that has a file name into `upload`; returns the part's own content type.

    The name of the form field does not matter, parts without a file name are ignored.

    Raises:
        Refusal: there is not exactly one file, it is larger than `max_size` bytes, or the body is malformed.
    """
    if request.content_type != "multipart/form-data":
        raise Refusal(400, "Request must have a valid content-type header to decode a multipart request")
    try:
        return await _receive(request, upload, max_size)
    except _MALFORMED as error:
        raise Refusal(400, "Failed to decode a multipart request") from error


async def _receive(request: web.Request, upload: Upload, max_size: int) -> str | None:
    content_types: list[str | None] = []
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader) or part.filename is None:
            continue
        if content_types:
            raise Refusal(400, "Exactly one file is expected")
        given = part.headers.get("Content-Type", "")
        content_types.append(given if given.isascii() else None)
        while chunk := await part.read_chunk(_CHUNK_BYTES):
            await upload.write(chunk)
            if upload.size > max_size:
                raise Refusal(413, "Request body is too large")
    if not content_types:
        raise Refusal(400, "No file is found in the request")
    await upload.finish()
    return content_types[0]
