"""Files of the HTTP door's callers: stored in DIAL Core, each owner's in a folder of their own."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Any, Literal
from urllib.parse import quote, unquote

import aiohttp
import orjson

from task.api.edge.failures import FILE_TOO_LARGE, Refused
from task.api.edge.identity import ApiCaller
from task.api.edge.schemas import ResponseModel
from task.core_client.urls import file_id_of, file_url, in_reach
from task.errors import InvalidRequest, NotFound, ToolError
from task.llm.dial import core_headers
from task.product import Services

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
USER_DATA: Purpose = "user_data"
SECONDS = 60.0
MAX_LISTED = 10_000
UNKNOWN_TYPE = "application/octet-stream"
_SENT = re.compile(r"^[0-9a-f]{16}(?:-(assistants|batch|fine-tune|vision|evals))?_(?=.)")  # before what was sent
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
class OpenFile:
    """A file's content that is being read; `size` is in bytes, None where Core does not send it."""

    filename: str
    content: aiohttp.StreamReader
    size: int | None


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
            raise Refused(413, FILE_TOO_LARGE.format(limit=self.max_bytes), code="file_too_large")
        if content_type in ("", UNKNOWN_TYPE):  # what curl sends for every file
            content_type = guess_type(name)[0] or UNKNOWN_TYPE
        marked = "" if purpose == USER_DATA else f"-{purpose}"
        stored = f"{sha256(content).hexdigest()[:16]}{marked}_{_readable(name)}"
        folder = await self._folder(caller)
        form = aiohttp.FormData()
        form.add_field("file", content, filename=stored, content_type=content_type)
        url = f"{folder}{quote(stored, safe='')}"
        await self._call(caller, "PUT", f"/v1/{url}", data=form)
        return await self.find(caller, file_id_of(url))

    async def find(self, caller: ApiCaller, file_id: str) -> FileBody:
        """Raises: NotFound: the caller has no such file."""
        url = self._url(caller, file_id)
        found = await self._call(caller, "GET", f"/v1/metadata/{url}", missing=_missing(file_id))
        return _body(orjson.loads(found))

    async def list(self, caller: ApiCaller) -> list[FileBody]:
        """The files in the caller's folder, the newest first, at most 10,000."""
        folder, items, token = await self._folder(caller), list[dict[str, Any]](), ""
        while len(items) < MAX_LISTED:
            path = f"/v1/metadata/{folder}?limit=1000" + (f"&token={quote(token, safe='')}" if token else "")
            try:
                page = orjson.loads(await self._call(caller, "GET", path, missing="none"))
            except NotFound:
                break
            items += page.get("items") or []
            token = page.get("nextToken") or ""
            if not token:
                break
        items.sort(key=_created, reverse=True)
        return [_body(item) for item in items if item.get("nodeType") == "ITEM"]

    @asynccontextmanager
    async def opened(self, caller: ApiCaller, file_id: str) -> AsyncGenerator[OpenFile]:
        """The file, with its content as it arrives. Raises `NotFound`."""
        file = await self.find(caller, file_id)
        # However long the caller takes to read it, Core sends the next part soon.
        timeout = aiohttp.ClientTimeout(sock_connect=5, sock_read=SECONDS)
        async with self._request(caller, "GET", f"/v1/{file.url}", missing=_missing(file_id), timeout=timeout) as found:
            size = found.content_length if "Content-Encoding" not in found.headers else None
            yield OpenFile(file.filename, found.content, size)

    async def delete(self, caller: ApiCaller, file_id: str) -> None:
        file = await self.find(caller, file_id)
        await self._call(caller, "DELETE", f"/v1/{file.url}", missing=_missing(file_id))

    def _url(self, caller: ApiCaller, file_id: str) -> str:
        try:
            url = file_url(_named(file_id), self.services.endpoint)
        except (ValueError, ToolError) as error:
            raise NotFound(_missing(file_id)) from error
        if not in_reach(url, caller.core_key):
            raise NotFound(_missing(file_id))
        return url

    async def _folder(self, caller: ApiCaller) -> str:
        home = orjson.loads(await self._call(caller, "GET", "/v1/bucket"))
        return f"files/{home.get('appdata') or home['bucket']}/{quote(caller.folder)}/"

    async def _call(self, caller: ApiCaller, method: str, path: str, *, missing: str = "", data: Any = None) -> bytes:
        timeout = aiohttp.ClientTimeout(SECONDS, sock_connect=5)
        async with self._request(caller, method, path, missing=missing, data=data, timeout=timeout) as response:
            return await response.read()

    @asynccontextmanager
    async def _request(
        self, caller: ApiCaller, method: str, path: str, *, missing: str, **options: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        url, headers = f"{self.services.endpoint.rstrip('/')}{path}", core_headers(caller.core_key)
        try:
            async with self.services.session.request(
                method, url, headers=headers, allow_redirects=False, **options
            ) as response:
                if response.status in (400, 403, 404) and missing:
                    raise NotFound(missing)
                if response.status in (401, 403):
                    raise Refused(503, _NO_KEY, code="files_unavailable")
                if response.status == 413:
                    raise Refused(413, "DIAL Core does not accept a file of that size.", code="file_too_large")
                response.raise_for_status()
                yield response
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            detail = f"no answer from DIAL Core at {self.services.endpoint}"
            raise Refused(503, _NO_CORE, code="files_unavailable", retry_after=5, detail=detail) from error


def decoded(data: str) -> tuple[bytes, str]:
    """Content and type of a data URL, or of plain Base64.

    Raises:
        InvalidRequest: it is neither.
    """
    kind, text = UNKNOWN_TYPE, data
    if data.startswith("data:"):
        head, separator, text = data[5:].partition(",")
        kind, _, coding = head.partition(";")
        if not separator or not (coding == "base64" or coding.endswith(";base64")):
            raise InvalidRequest("a data URL must look like data:TYPE;base64,CONTENT")
    try:
        return base64.b64decode(text, validate=True), kind or "text/plain"
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("the file's data is not valid Base64") from error


def _missing(file_id: str) -> str:
    return f"there is no file {file_id!r}"


def _named(file_id: str) -> str:
    head, separator, text = file_id.partition("file-")
    if head or not separator:
        raise ValueError("an id begins with file-")
    place = base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True).decode()
    return f"files/{quote(place)}"


def _readable(name: str) -> str:
    path = PurePosixPath(_UNFIT.sub("_", name).strip(" .") or "file")
    return f"{path.stem[:80]}{path.suffix[:20]}"


def _body(item: dict[str, Any]) -> FileBody:
    url = str(item["url"])
    name = str(item.get("name") or unquote(url.rsplit("/", 1)[-1]))
    sent = _SENT.match(name)
    return FileBody(
        id=file_id_of(url),
        object="file",
        bytes=int(item.get("contentLength") or 0),
        created_at=int(_created(item) / 1000),
        filename=_SENT.sub("", name),
        # What its sender gave; a file that nobody sent was made by a tool.
        purpose="assistants_output" if sent is None else sent[1] or USER_DATA,
        status="processed",
        url=url,
        content_type=str(item.get("contentType") or UNKNOWN_TYPE),
    )


def _created(item: dict[str, Any]) -> float:
    return item.get("createdAt") or item.get("updatedAt") or 0
