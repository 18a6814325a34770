"""Core's HTTP calls about buckets, files, conversations and prompts: write, read, delete, metadata, move, copy."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable
from typing import BinaryIO

import orjson
from aiohttp import web

from task.local_core.access import AccessRules
from task.local_core.buckets import BucketIds
from task.local_core.conditions import Conditions
from task.local_core.identity import IDENTITY, Identity
from task.local_core.metadata import ListingQuery, folder_node, item_node
from task.local_core.multipart import receive_file
from task.local_core.refusal import PlainAnswer, Refusal, json_answer
from task.local_core.relay import read_body
from task.local_core.storage import Store, StoredFile
from task.local_core.transfer import parse_transfer
from task.local_core.uploads import Upload
from task.local_core.urls import RESOURCE_TYPES, InvalidUrl, ResourceUrl, parse

MAX_FILE_BYTES = 536_870_912
DOCUMENTS = ("conversations", "prompts")
"""Resources that are JSON objects; they are written as bodies, not as forms."""

_CHUNK_BYTES = 1 << 18
_METADATA_TYPE = "application/vnd.dial.metadata+json"


def register(
    app: web.Application,
    store: Store,
    access: AccessRules,
    buckets: BucketIds,
    *,
    max_file_size: int = MAX_FILE_BYTES,
    core025: bool = False,
) -> None:
    """Add the routes of buckets, files, conversations and prompts.

    The handlers read `request[IDENTITY]` and raise `Refusal`; `max_file_size` is in bytes. Core 0.25 has no copy.
    """
    calls = _Resources(store, access, buckets, max_file_size)
    tail = r"{tail:[\s\S]*}"  # a decoded path may hold line breaks, which `.` does not match
    router = app.router
    router.add_get("/v1/bucket", calls.bucket, allow_head=False)
    router.add_put(f"/v1/files/{tail}", calls.put)
    router.add_get(f"/v1/files/{tail}", calls.get, allow_head=False)
    router.add_delete(f"/v1/files/{tail}", calls.delete)
    for kind in DOCUMENTS:
        router.add_put(f"/v1/{kind}/{tail}", calls.put_document)
        router.add_get(f"/v1/{kind}/{tail}", calls.get, allow_head=False)
        router.add_delete(f"/v1/{kind}/{tail}", calls.delete)
    for kind in RESOURCE_TYPES:
        router.add_get(f"/v1/metadata/{kind}/{tail}", calls.metadata, allow_head=False)
    router.add_post("/v1/ops/resource/move", calls.transfer(move=True))
    if not core025:
        router.add_post("/v1/ops/resource/copy", calls.transfer(move=False))


class _Resources:
    def __init__(self, store: Store, access: AccessRules, buckets: BucketIds, max_file_size: int) -> None:
        self._store = store
        self._access = access
        self._buckets = buckets
        self._max_file_size = max_file_size

    async def bucket(self, request: web.Request) -> web.Response:
        identity = request[IDENTITY]
        if identity.key is None:
            return json_answer(request, {"bucket": self._buckets.id_of(identity.owner)})
        own = self._buckets.id_of(f"Keys/{identity.key.deployment}/")
        return json_answer(request, {"bucket": own, "appdata": self._access.appdata_of(identity)})

    async def put(self, request: web.Request) -> web.Response:
        resource = self._new(request)
        with self._store.upload() as upload:
            content_type = await receive_file(request, upload, self._max_file_size)
            content_type = content_type or mimetypes.guess_type(resource.name or "")[0] or "application/octet-stream"
            return await self._keep(request, resource, upload, content_type)

    async def put_document(self, request: web.Request) -> web.Response:
        resource = self._new(request)
        body = await read_body(request)
        if not _is_object(body):
            raise Refusal(400, "The request body must be a JSON object")
        with self._store.upload() as upload:
            await upload.write(body)
            await upload.finish()
            return await self._keep(request, resource, upload, "application/json")

    async def get(self, request: web.Request) -> web.StreamResponse:
        resource = self._resource(_tail(request, "/v1/"))
        if resource.is_folder:
            raise Refusal(400, "Can't download a folder")
        self._check_read(request[IDENTITY], resource)
        opened = await self._store.open(resource.url)
        if opened is None:
            raise Refusal(404, "" if resource.type == "files" else f"Not found: {resource.url}")
        stored, content = opened
        with content:
            Conditions.of(request.headers).check_download(stored)
            return await _send(request, stored, content)

    async def delete(self, request: web.Request) -> web.Response:
        resource = self._resource(_tail(request, "/v1/"))
        if resource.is_folder:
            raise Refusal(400, f"Folder not allowed: {resource.url}")
        self._check_write(request[IDENTITY], resource)
        if not await self._store.delete(resource.url, Conditions.of(request.headers).check_change):
            raise Refusal(404, f"Not found: {resource.url}")
        return PlainAnswer(200)

    async def metadata(self, request: web.Request) -> web.Response:
        resource = self._resource(_tail(request, "/v1/metadata/"))
        self._check_read(request[IDENTITY], resource)
        query = ListingQuery.of(request.query)

        def permissions(url: str) -> list[str]:
            return ["READ", "WRITE"] if self._access.may_write(request[IDENTITY], url) else ["READ"]

        if resource.is_folder:
            files = await self._store.list(resource.url)
            if not files and resource.segments:
                raise Refusal(404)
            answer = json_answer(request, folder_node(resource, files, query, permissions))
        else:
            stored = await self._store.read(resource.url)
            if stored is None:
                raise Refusal(404)
            answer = json_answer(request, item_node(stored, permissions if query.permissions else None))
        if _METADATA_TYPE in request.headers.get("Accept", ""):
            answer.content_type = _METADATA_TYPE
        return answer

    def transfer(self, *, move: bool) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            wanted = parse_transfer(await request.read())
            source, destination = self._resource(wanted.source_url), self._resource(wanted.destination_url)
            self._check_transfer(request[IDENTITY], source, destination, move)

            def check(stored: StoredFile | None) -> None:
                if stored is not None and not wanted.overwrite:
                    raise Refusal(400, f"Destination resource already exists: {destination.url}")

            if not await self._store.copy(source.url, destination.url, check, move=move):
                raise Refusal(404, f"Not found: {source.url}")
            return PlainAnswer(200)

        return handler

    def _new(self, request: web.Request) -> ResourceUrl:
        resource = self._resource(_tail(request, "/v1/"))
        if resource.is_folder:
            raise Refusal(400, "File name is missing")
        _check_new_name(resource)
        self._check_write(request[IDENTITY], resource)
        return resource

    async def _keep(
        self, request: web.Request, resource: ResourceUrl, upload: Upload, content_type: str
    ) -> web.Response:
        check = Conditions.of(request.headers).check_change
        stored = await self._store.keep(resource.url, upload, content_type, _author(request[IDENTITY]), check)
        answer = json_answer(request, item_node(stored))
        answer.headers.update(_etag_headers(stored))
        return answer

    def _check_transfer(self, identity: Identity, source: ResourceUrl, destination: ResourceUrl, move: bool) -> None:
        for resource in (source, destination):
            if resource.is_folder:
                raise Refusal(400, f"Folder not allowed: {resource.url}")
        if source.type != destination.type:
            raise Refusal(400, "Source and destination must be resources of the same type")
        if source == destination:
            raise Refusal(400, f"Source and destination are the same resource: {source.url}")
        _check_new_name(destination)
        self._check_read(identity, source)
        if move:
            self._check_write(identity, source)
        self._check_write(identity, destination)

    def _resource(self, url: str) -> ResourceUrl:
        try:
            resource = parse(url)
        except InvalidUrl as error:
            raise Refusal(400, str(error)) from error
        if self._buckets.owner_of(resource.bucket) is None:
            raise Refusal(400, f"Url has invalid bucket: {resource.url}")
        return resource

    def _check_read(self, identity: Identity, resource: ResourceUrl) -> None:
        if not self._access.may_read(identity, resource.url):
            raise Refusal(403, f"You don't have an access to: {resource.url}")

    def _check_write(self, identity: Identity, resource: ResourceUrl) -> None:
        if not self._access.may_write(identity, resource.url):
            raise Refusal(403, f"You don't have an access to: {resource.url}")


def _tail(request: web.Request, prefix: str) -> str:
    """The path as it was sent: percent-encoding decides what is a separator and what is a name."""
    return request.rel_url.raw_path.removeprefix(prefix)


def _check_new_name(resource: ResourceUrl) -> None:
    if resource.ends_in_dot:
        raise Refusal(400, "Resource name and/or parent folders must not end with .(dot)")


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError:
        return False


def _author(identity: Identity) -> str:
    return identity.owner.partition("/")[2].removesuffix("/")


def _etag_headers(stored: StoredFile) -> dict[str, str]:
    return {"ETag": stored.etag, "Access-Control-Expose-Headers": "etag"}


async def _send(request: web.Request, stored: StoredFile, content: BinaryIO) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": stored.content_type, **_etag_headers(stored)})
    answer.content_length = stored.size
    await answer.prepare(request)
    while chunk := await asyncio.to_thread(content.read, _CHUNK_BYTES):
        await answer.write(chunk)
    await answer.write_eof()
    return answer
