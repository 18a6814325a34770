"""Core's HTTP calls about buckets and files: write, read, delete, metadata, move, copy."""

import asyncio
import mimetypes
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from task.local.core.access import PRINCIPAL, Access, FileUrl, parse
from task.local.core.core import CORE
from task.local.core.responses import PlainResponse, Refusal, json_object, json_response
from task.local.core.storage import StoredFile

MAX_LIMIT = 1000
_CHUNK_BYTES = 1 << 18
_LIMIT = re.compile(r"[0-9]{1,9}")
# aiohttp's reader reports a body without its closing boundary by an assertion.
_MALFORMED = (ValueError, AssertionError, BadHttpMessage, web.RequestPayloadError)
Node = dict[str, Any]


async def show_bucket(request: web.Request) -> web.Response:
    """The caller's bucket; an application's own one, and its folder in the user's."""
    access, caller = request.app[CORE].access, request[PRINCIPAL]
    if caller.key is None:
        return json_response({"bucket": access.id_of(caller.owner)})
    deployment = caller.key.deployment
    own, appdata = access.id_of(f"Keys/{deployment}/"), access.appdata_of(caller.owner, deployment)
    return json_response({"bucket": own, "appdata": appdata})


async def write(request: web.Request) -> web.Response:
    """Store the file that comes in a form."""
    core, resource = request.app[CORE], requested(request, "READ_WRITE", "File name is missing")
    check_new_name(resource)
    caller, check = request[PRINCIPAL], partial(check_conditions, request.headers)
    with tempfile.TemporaryFile() as content:
        kind = await receive_file(request, content, core.settings.max_upload)
        kind = kind or mimetypes.guess_type(resource.name or "")[0] or "application/octet-stream"
        stored = await asyncio.to_thread(core.store.keep, caller, resource.url, content, kind, caller.author, check)
    return json_response(item_node(stored), headers={"ETag": stored.etag})


async def read(request: web.Request) -> web.StreamResponse:
    """Download a file."""
    resource = requested(request, "READ", "Can't download a folder")
    opened = await asyncio.to_thread(request.app[CORE].store.open, request[PRINCIPAL], resource.url)
    if opened is None:
        raise Refusal(404)
    stored, content = opened
    with content:
        check_conditions(request.headers, stored, download=True)
        response = web.Response(body=content, headers={"Content-Type": stored.content_type, "ETag": stored.etag})
        await response.prepare(request)
        await response.write_eof()
        return response


async def delete(request: web.Request) -> web.Response:
    """Delete a file."""
    resource = requested(request, "READ_WRITE", "Folder not allowed: {url}")
    check = partial(check_conditions, request.headers)
    if not await asyncio.to_thread(request.app[CORE].store.delete, request[PRINCIPAL], resource.url, check):
        raise Refusal(404, f"Not found: {resource.url}")
    return PlainResponse(200)


async def describe(request: web.Request) -> web.Response:
    """The metadata of a file, or a page of a folder."""
    store, caller, resource = request.app[CORE].store, request[PRINCIPAL], requested(request, "READ")
    if resource.is_folder:
        files = await asyncio.to_thread(store.list, caller, resource.url)
        if not files and resource.segments:
            raise Refusal(404)
        return json_response(folder_node(resource, files, request.query))
    stored = await asyncio.to_thread(store.read, caller, resource.url)
    if stored is None:
        raise Refusal(404)
    return json_response(item_node(stored))


async def transfer(request: web.Request) -> web.Response:
    """Move or copy a file to another name or bucket."""
    wanted = json_object(await request.read())
    source_url, destination_url = wanted.get("sourceUrl"), wanted.get("destinationUrl")
    if not isinstance(source_url, str) or not isinstance(destination_url, str):
        raise Refusal(400, "Request body must have sourceUrl and destinationUrl")
    move = request.match_info["operation"] == "move"
    source = _accessible(request, source_url, "READ_WRITE" if move else "READ", "Folder not allowed: {url}")
    destination = _accessible(request, destination_url, "READ_WRITE", "Folder not allowed: {url}")
    check_new_name(destination)
    if source.kind != destination.kind:
        raise Refusal(400, "Source and destination must be of one type")
    if source == destination:
        raise Refusal(400, f"Source and destination are the same resource: {source.url}")

    def check(stored: StoredFile | None) -> None:
        if stored is not None and wanted.get("overwrite") is not True:
            raise Refusal(400, f"Destination resource already exists: {destination.url}")

    store, caller = request.app[CORE].store, request[PRINCIPAL]
    if (opened := await asyncio.to_thread(store.open, caller, source.url)) is None:
        raise Refusal(404, f"Not found: {source.url}")
    stored, content = opened
    with content:
        await asyncio.to_thread(store.keep, caller, destination.url, content, stored.content_type, stored.author, check)
    if move:
        await asyncio.to_thread(store.delete, caller, source.url, lambda _: None)
    return PlainResponse(200)


def requested(request: web.Request, wanted: Access, no_folder: str = "") -> FileUrl:
    """What the path of the request names. Raises: Refusal where the caller may not do that with it."""
    # The path as it was sent: percent-encoding decides what is a separator and what is a name
    path = request.rel_url.raw_path.removeprefix("/v1/")
    return _accessible(request, path.removeprefix("metadata/"), wanted, no_folder)


def _accessible(request: web.Request, url: str, wanted: Access, no_folder: str = "") -> FileUrl:
    resource, access = parse(url), request.app[CORE].access
    if access.owner_of(resource.bucket) is None:
        raise Refusal(400, f"Url has invalid bucket: {resource.url}")
    if no_folder and resource.is_folder:
        raise Refusal(400, no_folder.format(url=resource.url))
    access.require(request[PRINCIPAL], resource, wanted)
    return resource


def check_new_name(resource: FileUrl) -> None:
    if any(segment.endswith(".") for segment in resource.segments):
        raise Refusal(400, "Resource name and/or parent folders must not end with .(dot)")


def item_node(stored: StoredFile) -> Node:
    """A file, with its etag."""
    return _node(parse(stored.url), "ITEM") | {
        "createdAt": stored.created_at,
        "updatedAt": stored.updated_at,
        "etag": stored.etag,
        "author": stored.author,
        "contentLength": stored.size,
        "contentType": stored.content_type,
    }


def folder_node(folder: FileUrl, files: Sequence[StoredFile], query: Mapping[str, str]) -> Node:
    """One page of a folder: `recursive`, `limit`, and `token`, the key of the last node that the caller has.

    `files` are all below it, in the order of their paths; its own sub-folders are nodes too, unless the query is
    recursive.

    Raises: Refusal 400 when a parameter is out of its range.
    """
    limit, recursive = query.get("limit", "100"), query.get("recursive", "false").lower()
    if recursive not in {"true", "false"} or not _LIMIT.fullmatch(limit) or int(limit) > MAX_LIMIT:
        text = f"Bad query parameters. Limit must be in [0, {MAX_LIMIT}] range. Recursive must be true/false"
        raise Refusal(400, text)
    depth = len(folder.segments) + 1
    nodes: dict[str, Node] = {}
    for stored in files:
        url = parse(stored.url)
        if recursive == "true" or len(url.segments) == depth:
            nodes[url.path] = item_node(stored)
            del nodes[url.path]["etag"]  # Core's listings carry none
        else:
            below = replace(url, segments=url.segments[:depth], is_folder=True)
            nodes[below.path] = _node(below, "FOLDER")
    later = [key for key in nodes if key > query.get("token", "")]
    page = later[: int(limit)]
    more = {"nextToken": page[-1]} if page and len(later) > len(page) else {}
    return _node(folder, "FOLDER") | {"items": [nodes[key] for key in page]} | more


def _node(resource: FileUrl, node_type: str) -> Node:
    known = {
        "name": resource.name,
        "parentPath": "/".join(resource.segments[:-1]) or None,
        "bucket": resource.bucket,
        "url": resource.url,
        "nodeType": node_type,
        "resourceType": resource.kind.removesuffix("s").upper(),
    }
    return {name: value for name, value in known.items() if value is not None}


def check_conditions(headers: Mapping[str, str], stored: StoredFile | None, *, download: bool = False) -> None:
    """Check a request's conditions, which apply only to a file that exists.

    Raises: Refusal 412, or 304 where they make a download unnecessary.
    """
    if stored is None:
        return
    wanted, unwanted = (
        {etag for part in headers.get(name, "").split(",") if (etag := part.strip().strip('"'))}
        for name in ("If-Match", "If-None-Match")
    )
    if wanted and wanted.isdisjoint({"*", stored.etag}):
        raise Refusal(412, f"If-match condition is failed for etag: {stored.etag}")
    if download and not unwanted.isdisjoint({"*", stored.etag}):
        raise Refusal(304, headers={"ETag": stored.etag})
    if "*" in unwanted:
        raise Refusal(412, "Resource already exists")
    if stored.etag in unwanted:
        raise Refusal(412, f"If-none-match condition is failed for etag: {stored.etag}")


async def receive_file(request: web.Request, content: BinaryIO, max_size: int) -> str | None:
    """Write the request's one part that has a file name into `content`; returns the part's own content type.

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
                if content.tell() + len(chunk) > max_size:
                    raise Refusal(413, "Request body is too large")
                await asyncio.to_thread(content.write, chunk)
    except _MALFORMED as error:
        raise Refusal(400, "Failed to decode a multipart request") from error
    if not content_types:
        raise Refusal(400, "No file is found in the request")
    content.seek(0)
    return content_types[0]
