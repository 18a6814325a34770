"""Core's HTTP calls about buckets, files, conversations and prompts: write, read, delete, metadata, move, copy."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable

from aiohttp import web

from task.local.core.access import PRINCIPAL
from task.local.core.core import CORE
from task.local.core.metadata import Conditions, ListingQuery, Transfer, folder_node, item_node, receive_file
from task.local.core.responses import PlainResponse, Refusal, json_object, json_response, read_body
from task.local.core.storage import StoredFile, Upload
from task.local.core.urls import RESOURCE_TYPES, ResourceUrl, parse

DOCUMENTS = ("conversations", "prompts")
"""Resources that are JSON objects; they are written as bodies, not as forms."""

_CHUNK_BYTES = 1 << 18
_METADATA_TYPE = "application/vnd.dial.metadata+json"


def file_routes(*, core025: bool) -> list[web.RouteDef]:
    """The routes of buckets, files, conversations and prompts. Core 0.25 has no copy."""
    tail = r"{tail:[\s\S]*}"  # a decoded path may hold line breaks, which `.` does not match
    routes = [web.get("/v1/bucket", _bucket, allow_head=False)]
    for kind in ("files", *DOCUMENTS):
        routes += [
            web.put(f"/v1/{kind}/{tail}", _put_document if kind in DOCUMENTS else _put_file),
            web.get(f"/v1/{kind}/{tail}", _get, allow_head=False),
            web.delete(f"/v1/{kind}/{tail}", _delete),
        ]
    routes += [web.get(f"/v1/metadata/{kind}/{tail}", _metadata, allow_head=False) for kind in RESOURCE_TYPES]
    routes.append(web.post("/v1/ops/resource/move", _transfer(move=True)))
    return routes if core025 else [*routes, web.post("/v1/ops/resource/copy", _transfer(move=False))]


async def _bucket(request: web.Request) -> web.Response:
    core, identity = request.app[CORE], request[PRINCIPAL]
    if identity.key is None:
        return json_response({"bucket": core.buckets.id_of(identity.owner)})
    own = core.buckets.id_of(f"Keys/{identity.key.deployment}/")
    return json_response({"bucket": own, "appdata": core.access.appdata_of(identity)})


async def _put_file(request: web.Request) -> web.Response:
    core, resource = request.app[CORE], _new_resource(request)
    with core.store.upload() as upload:
        content_type = await receive_file(request, upload, core.settings.max_upload)
        content_type = content_type or mimetypes.guess_type(resource.name or "")[0] or "application/octet-stream"
        return await _keep(request, resource, upload, content_type)


async def _put_document(request: web.Request) -> web.Response:
    resource = _new_resource(request)
    body = await read_body(request)
    json_object(body, "The request body must be a JSON object")
    with request.app[CORE].store.upload() as upload:
        await upload.write(body)
        await upload.finish()
        return await _keep(request, resource, upload, "application/json")


async def _get(request: web.Request) -> web.StreamResponse:
    resource = _resource(request, _tail(request, "/v1/"))
    if resource.is_folder:
        raise Refusal(400, "Can't download a folder")
    _check_read(request, resource)
    opened = await asyncio.to_thread(request.app[CORE].store.open, resource.url)
    if opened is None:
        raise Refusal(404, "" if resource.type == "files" else f"Not found: {resource.url}")
    stored, content = opened
    with content:
        Conditions.of(request.headers).check_download(stored)
        response = web.StreamResponse(headers={"Content-Type": stored.content_type, **_etag_headers(stored)})
        response.content_length = stored.size
        await response.prepare(request)
        while chunk := await asyncio.to_thread(content.read, _CHUNK_BYTES):
            await response.write(chunk)
        await response.write_eof()
        return response


async def _delete(request: web.Request) -> web.Response:
    resource = _resource(request, _tail(request, "/v1/"))
    if resource.is_folder:
        raise Refusal(400, f"Folder not allowed: {resource.url}")
    _check_write(request, resource)
    check = Conditions.of(request.headers).check_change
    if not await asyncio.to_thread(request.app[CORE].store.delete, resource.url, check):
        raise Refusal(404, f"Not found: {resource.url}")
    return PlainResponse(200)


async def _metadata(request: web.Request) -> web.Response:
    core, resource = request.app[CORE], _resource(request, _tail(request, "/v1/metadata/"))
    _check_read(request, resource)
    if resource.is_folder:
        files = await asyncio.to_thread(core.store.list, resource.url)
        if not files and resource.segments:
            raise Refusal(404)
        response = json_response(folder_node(resource, files, ListingQuery.of(request.query)))
    else:
        stored = await asyncio.to_thread(core.store.read, resource.url)
        if stored is None:
            raise Refusal(404)
        response = json_response(item_node(stored))
    if _METADATA_TYPE in request.headers.get("Accept", ""):
        response.content_type = _METADATA_TYPE
    return response


def _transfer(*, move: bool) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        wanted = Transfer.parse(await request.read())
        source, destination = _resource(request, wanted.source_url), _resource(request, wanted.destination_url)
        for resource in (source, destination):
            if resource.is_folder:
                raise Refusal(400, f"Folder not allowed: {resource.url}")
        if source.type != destination.type:
            raise Refusal(400, "Source and destination must be resources of the same type")
        if source == destination:
            raise Refusal(400, f"Source and destination are the same resource: {source.url}")
        _check_new_name(destination)
        _check_read(request, source)
        if move:
            _check_write(request, source)
        _check_write(request, destination)

        def check(stored: StoredFile | None) -> None:
            if stored is not None and not wanted.overwrite:
                raise Refusal(400, f"Destination resource already exists: {destination.url}")

        if not await asyncio.to_thread(request.app[CORE].store.copy, source.url, destination.url, check, move=move):
            raise Refusal(404, f"Not found: {source.url}")
        return PlainResponse(200)

    return handler


def _new_resource(request: web.Request) -> ResourceUrl:
    resource = _resource(request, _tail(request, "/v1/"))
    if resource.is_folder:
        raise Refusal(400, "File name is missing")
    _check_new_name(resource)
    _check_write(request, resource)
    return resource


async def _keep(request: web.Request, resource: ResourceUrl, upload: Upload, content_type: str) -> web.Response:
    check = Conditions.of(request.headers).check_change
    author = request[PRINCIPAL].owner.partition("/")[2].removesuffix("/")
    stored = await asyncio.to_thread(request.app[CORE].store.keep, resource.url, upload, content_type, author, check)
    response = json_response(item_node(stored))
    response.headers.update(_etag_headers(stored))
    return response


def _resource(request: web.Request, url: str) -> ResourceUrl:
    resource = parse(url)
    if request.app[CORE].buckets.owner_of(resource.bucket) is None:
        raise Refusal(400, f"Url has invalid bucket: {resource.url}")
    return resource


def _check_read(request: web.Request, resource: ResourceUrl) -> None:
    if not request.app[CORE].access.may_read(request[PRINCIPAL], resource.url):
        raise Refusal(403, f"You don't have an access to: {resource.url}")


def _check_write(request: web.Request, resource: ResourceUrl) -> None:
    if not request.app[CORE].access.may_write(request[PRINCIPAL], resource.url):
        raise Refusal(403, f"You don't have an access to: {resource.url}")


def _tail(request: web.Request, prefix: str) -> str:
    # The path as it was sent: percent-encoding decides what is a separator and what is a name
    return request.rel_url.raw_path.removeprefix(prefix)


def _check_new_name(resource: ResourceUrl) -> None:
    if resource.ends_in_dot:
        raise Refusal(400, "Resource name and/or parent folders must not end with .(dot)")


def _etag_headers(stored: StoredFile) -> dict[str, str]:
    return {"ETag": stored.etag, "Access-Control-Expose-Headers": "etag"}
