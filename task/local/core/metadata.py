"""What requests about files carry, and the metadata that Core describes files and folders with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage
from pydantic import BaseModel, Field, ValidationError

from task.local.core.responses import Refusal
from task.local.core.storage import StoredFile, Upload
from task.local.core.urls import RESOURCE_TYPES, ResourceUrl, parse

MAX_LIMIT = 1000

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListingQuery:
    """How much of a folder is requested; `token` is the key of the last node that the caller has."""

    recursive: bool = False
    limit: int = 100
    token: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Raises Refusal 400 when a parameter is out of its range."""
        limit, recursive = query.get("limit", "100"), query.get("recursive", "false").lower()
        if recursive not in {"true", "false"} or not _WHOLE_NUMBER.fullmatch(limit):
            text = f"Bad query parameters. Limit must be in [0, {MAX_LIMIT}] range. Recursive must be true/false"
            raise Refusal(400, text)
        if not 0 <= int(limit) <= MAX_LIMIT:
            raise Refusal(400, f"Limit is out of allowed range: [0, {MAX_LIMIT}]")
        return cls(recursive == "true", int(limit), query.get("token", ""))


def item_node(stored: StoredFile) -> Node:
    """A file, conversation or prompt, with its etag; only files have a size and type."""
    url = parse(stored.url)
    content = {"contentLength": stored.size, "contentType": stored.content_type} if url.type == "files" else {}
    return _node(url, "ITEM") | {
        "createdAt": stored.created_at,
        "updatedAt": stored.updated_at,
        "etag": stored.etag,
        "author": stored.author,
        **content,
    }


def folder_node(folder: ResourceUrl, files: Sequence[StoredFile], query: ListingQuery) -> Node:
    """One page of a folder. `files` are all below it, in the order of their paths; its own sub-folders are nodes too,
    unless the query is recursive."""
    later = [pair for pair in _keyed(folder, files, query.recursive) if pair[0] > query.token]
    page = later[: query.limit]
    items: list[Node] = []
    for _, entry in page:
        node = _node(entry, "FOLDER") if isinstance(entry, ResourceUrl) else item_node(entry)
        node.pop("etag", None)  # Core's listings carry none
        items.append(node)
    more = {"nextToken": page[-1][0]} if page and len(later) > len(page) else {}
    return _node(folder, "FOLDER") | {"items": items} | more


def _keyed(
    folder: ResourceUrl, files: Sequence[StoredFile], recursive: bool
) -> Iterator[tuple[str, ResourceUrl | StoredFile]]:
    depth = len(folder.segments) + 1
    last: ResourceUrl | None = None
    for stored in files:
        url = parse(stored.url)
        if recursive or len(url.segments) == depth:
            yield url.path, stored
            continue
        below = ResourceUrl(url.type, url.bucket, url.segments[:depth], is_folder=True)
        if below != last:
            last = below
            yield below.path, below


def _node(resource: ResourceUrl, node_type: str) -> Node:
    known = {
        "name": resource.name,
        "parentPath": resource.parent_path,
        "bucket": resource.bucket,
        "url": resource.url,
        "nodeType": node_type,
        "resourceType": RESOURCE_TYPES[resource.type],
    }
    return {name: value for name, value in known.items() if value is not None}


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
    content_types: list[str | None] = []
    try:
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
    except _MALFORMED as error:
        raise Refusal(400, "Failed to decode a multipart request") from error
    if not content_types:
        raise Refusal(400, "No file is found in the request")
    await upload.finish()
    return content_types[0]
