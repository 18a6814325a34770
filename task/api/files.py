"""`/v1/files`: files of the HTTP door's callers, stored in DIAL Core, each owner's in a folder of their own."""

import base64
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

import aiohttp
import orjson
from fastapi import Depends, Form, Query, UploadFile
from fastapi import File as FormFile
from starlette.responses import Response

from task.api.failures import FILE_TOO_LARGE, failures, refused
from task.api.identity import ApiCaller
from task.api.schemas import UNKNOWN_TYPE, DeletedBody, ItemPage, Order, ResponseModel, page_of_items
from task.api.service import ByteStream, CurrentService, router
from task.conversation.inputs import SENT
from task.core_client.files import file_id_of, file_url, in_reach
from task.errors import NotFound, ToolError
from task.llm.dial import core_headers
from task.product import Services

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
USER_DATA: Purpose = "user_data"
SECONDS = 60.0
MAX_LISTED = 10_000
_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\{}?#%]+")
_NO_CORE = (
    "Files are stored in DIAL Core, and no Core answers at DIAL_ENDPOINT. Try again in a moment; where the agent runs "
    "without a Core, write the file's text into the message."
)
_NO_KEY = (
    "DIAL Core does not accept the key with which files are stored. An operator sets it with DIAL_API_KEY; in the mode "
    "`dial` it is the key or token of this request."
)


class FileBody(ResponseModel):
    """A file of the caller's; tools refer to it by `url`, and `filename` is the name under which it was sent."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str
    url: str
    content_type: str


@dataclass(frozen=True, slots=True)
class FileShelf:
    """Stores files below `files/{bucket}/{folder of the caller}/`, and finds all that the caller's key may read."""

    services: Services
    max_bytes: int

    async def save(
        self, caller: ApiCaller, name: str, content: bytes, content_type: str, purpose: Purpose = USER_DATA
    ) -> FileBody:
        """The stored file; the same content under the same name, for the same purpose, is the same file."""
        if len(content) > self.max_bytes:
            raise refused(413, FILE_TOO_LARGE.format(limit=self.max_bytes), code="file_too_large")
        if content_type in ("", UNKNOWN_TYPE):  # what curl sends for every file
            content_type = guess_type(name)[0] or UNKNOWN_TYPE
        path = PurePosixPath(_UNFIT.sub("_", name).strip(" .") or "file")
        marked = "" if purpose == USER_DATA else f"-{purpose}"
        stored = f"{sha256(content).hexdigest()[:16]}{marked}_{path.stem[:80]}{path.suffix[:20]}"
        folder = await self._folder(caller)
        form = aiohttp.FormData()
        form.add_field("file", content, filename=stored, content_type=content_type)
        url = f"{folder}{quote(stored, safe='')}"
        await self.call(caller, "PUT", f"/v1/{url}", data=form)
        return await self.find(caller, file_id_of(url))

    async def find(self, caller: ApiCaller, file_id: str) -> FileBody:
        """Raises: NotFound: the caller has no such file."""
        head, separator, text = file_id.partition("file-")
        try:
            place = base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True).decode()
            url = file_url(f"files/{quote(place)}", self.services.endpoint)
        except (ValueError, ToolError) as error:
            raise NotFound(_missing(file_id)) from error
        if head or not separator or not in_reach(url, caller.core_key):
            raise NotFound(_missing(file_id))
        found = await self.call(caller, "GET", f"/v1/metadata/{url}", missing=_missing(file_id))
        return _body(orjson.loads(found))

    async def list(self, caller: ApiCaller) -> list[FileBody]:
        """The files in the caller's folder, the newest first, at most 10,000."""
        items, path = list[dict[str, Any]](), f"/v1/metadata/{await self._folder(caller)}?limit=1000"
        following = ""
        with suppress(NotFound):
            while len(items) < MAX_LISTED:
                page = orjson.loads(await self.call(caller, "GET", f"{path}{following}", missing="none"))
                items += page.get("items") or []
                if not page.get("nextToken"):
                    break
                following = f"&token={quote(page['nextToken'], safe='')}"
        items.sort(key=_created, reverse=True)
        return [_body(item) for item in items if item.get("nodeType") == "ITEM"]

    async def _folder(self, caller: ApiCaller) -> str:
        home = orjson.loads(await self.call(caller, "GET", "/v1/bucket"))
        return f"files/{home.get('appdata') or home['bucket']}/{quote(caller.folder)}/"

    async def call(self, caller: ApiCaller, method: str, path: str, *, missing: str = "", data: Any = None) -> bytes:
        """What Core answers to `request`."""
        timeout = aiohttp.ClientTimeout(SECONDS, sock_connect=5)
        async with self.request(caller, method, path, missing=missing, data=data, timeout=timeout) as response:
            return await response.read()

    @asynccontextmanager
    async def request(
        self, caller: ApiCaller, method: str, path: str, *, missing: str, **options: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Core's answer to the caller's request, as it arrives; with `missing`, the sentence of `NotFound`."""
        url, headers = f"{self.services.endpoint.rstrip('/')}{path}", core_headers(caller.core_key)
        try:
            async with self.services.session.request(
                method, url, headers=headers, allow_redirects=False, **options
            ) as response:
                if response.status in (400, 403, 404) and missing:
                    raise NotFound(missing)
                if response.status in (401, 403):
                    raise refused(503, _NO_KEY, code="files_unavailable")
                if response.status == 413:
                    raise refused(413, "DIAL Core does not accept a file of that size.", code="file_too_large")
                response.raise_for_status()
                yield response
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            detail = f"no answer from DIAL Core at {self.services.endpoint}"
            raise refused(503, _NO_CORE, code="files_unavailable", retry_after=5, detail=detail) from error


def _missing(file_id: str) -> str:
    return f"there is no file {file_id!r}"


def _body(item: dict[str, Any]) -> FileBody:
    url = str(item["url"])
    name = str(item.get("name") or unquote(url.rsplit("/", 1)[-1]))
    sent = SENT.match(name)
    return FileBody(
        id=file_id_of(url),
        object="file",
        bytes=int(item.get("contentLength") or 0),
        created_at=int(_created(item) / 1000),
        filename=SENT.sub("", name),
        # What its sender gave; a file without a sender was made by a tool.
        purpose="assistants_output" if sent is None else sent[1] or USER_DATA,
        status="processed",
        url=url,
        content_type=str(item.get("contentType") or UNKNOWN_TYPE),
    )


def _created(item: dict[str, Any]) -> float:
    return item.get("createdAt") or item.get("updatedAt") or 0


class FileList(ItemPage[FileBody]):
    pass


routes = router("OpenAI", "/v1")


@routes.post("/files", response_model=FileBody, responses=failures(413, 415))
async def upload_file(
    service: CurrentService, file: Annotated[UploadFile, FormFile()], purpose: Annotated[Purpose, Form()] = USER_DATA
) -> Any:
    """Store a file; messages refer to it by its id."""
    content = await file.read(service.shelf.max_bytes + 1)
    kind = file.content_type or UNKNOWN_TYPE
    return await service.shelf.save(service.caller, file.filename or "file", content, kind, purpose)


@routes.get("/files", response_model=FileList, responses=failures(404))
async def list_files(
    service: CurrentService,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
    order: Order = "desc",
    after: str | None = None,
    purpose: str | None = None,
) -> Any:
    """The caller's files, those sent and those that tools have made, the newest first unless `order` is `asc`."""
    files = await service.shelf.list(service.caller)
    found = {file.id: file for file in reversed(files) if purpose in (None, file.purpose)}
    return page_of_items(found, order, limit, after)


@routes.get("/files/{file_id}", response_model=FileBody, responses=failures(404))
async def get_file(file_id: str, service: CurrentService) -> Any:
    """A file's name, size, type and purpose."""
    return await service.shelf.find(service.caller, file_id)


async def _opened(file_id: str, service: CurrentService) -> AsyncGenerator[tuple[FileBody, aiohttp.ClientResponse]]:
    file = await service.shelf.find(service.caller, file_id)
    # However long the caller takes to read it, Core sends the next part soon.
    timeout = aiohttp.ClientTimeout(sock_connect=5, sock_read=SECONDS)
    where = service.caller, "GET", f"/v1/{file.url}"
    async with service.shelf.request(*where, missing=_missing(file_id), timeout=timeout) as found:
        yield file, found


@routes.get(
    "/files/{file_id}/content",
    response_class=Response,
    responses={200: {"content": {UNKNOWN_TYPE: {}}}, **failures(404)},
)
async def read_file(opened: Annotated[tuple[FileBody, aiohttp.ClientResponse], Depends(_opened)]) -> Response:
    """A file's content, as a download: a browser opens nothing of it."""
    file, found = opened
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}"}
    if found.content_length is not None and "Content-Encoding" not in found.headers:
        headers["Content-Length"] = str(found.content_length)
    return ByteStream(found.content.iter_any(), 200, headers, UNKNOWN_TYPE)


@routes.delete("/files/{file_id}", response_model=DeletedBody, responses=failures(404))
async def delete_file(file_id: str, service: CurrentService) -> Any:
    """Remove a file."""
    file = await service.shelf.find(service.caller, file_id)
    await service.shelf.call(service.caller, "DELETE", f"/v1/{file.url}", missing=_missing(file_id))
    return {"id": file_id, "object": "file", "deleted": True}
