"""Read and write files of DIAL Core with the caller's key, which may restrict them to a folder."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self
from urllib.parse import quote, unquote
from uuid import uuid4

import aiohttp
from yarl import URL

from task.core_client.models import DownloadedFile
from task.errors import ToolError
from task.llm.dial import UserToken, core_headers
from task.llm.transport import new_session
from task.output.charts import is_chart, without_remote_sources

logger = logging.getLogger(__name__)
_SECONDS = 60.0
_REFUSALS = {
    400: "DIAL Core refuses {subject} as malformed. Use the URL exactly as it stands in the attachments.",
    401: "DIAL Core does not accept this request's key, so {subject} cannot be reached. Answer without it.",
    403: "No access to {subject}. Ask the user to attach it to the message; what is attached can be read, not changed.",
    404: "There is no {subject}. Check the URL, or ask the user to attach the file again.",
    412: "{subject} was changed since you read it, or is there already. Nothing was done: read it again, then decide.",
}
_UNFIT_FOR_NAMES = re.compile(r"[\x00-\x1f/\\{}]+")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")
FORM = "files/{bucket}/{path}, as it stands in the message's attachments"


class FolderKey(str):
    """A key whose new files go into one `folder` of its bucket, written without slashes at its ends."""

    __slots__ = ("folder",)
    folder: str

    def __new__(cls, key: str, folder: str) -> Self:
        made = super().__new__(cls, key)
        made.folder = folder
        return made


class OwnersKey(FolderKey):
    """A key that several owners share; it also reads only files below its folder."""

    __slots__ = ()


class FolderToken(FolderKey, UserToken):
    """A user's token whose new files go into one folder of the bucket."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What Core knows of a file; `size` is in bytes."""

    url: str
    name: str
    size: int | None
    content_type: str | None
    etag: str | None

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        """The file, or the folder, that Core describes."""
        name, etag = item.get("name") or unquote(PurePosixPath(item["url"]).name), unquoted(item.get("etag"))
        return cls(item["url"], name, item.get("contentLength"), item.get("contentType"), etag)


class DialFiles:
    """Files of one DIAL Core, over the connections of `session`; without it each call opens and closes its own.

    A call lasts at most `seconds`. Keys go to `endpoint` only: URLs of other hosts are refused unsent.

    Raises:
        ToolError: by every method that fails; the text says to the model what to do next.
    """

    def __init__(
        self, endpoint: str, *, session: aiohttp.ClientSession | None = None, seconds: float = _SECONDS
    ) -> None:
        self._endpoint, self._session, self._seconds = endpoint, session, seconds

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile:
        """The file at `files/{bucket}/{path}` or `{endpoint}/v1/files/...`, of at most `max_size` bytes."""
        relative = self.check(url, api_key)
        async with self.request("GET", relative, api_key, shortened(relative)) as response:
            content = bytearray()
            too_large = (response.content_length or 0) > max_size
            if not too_large:
                async for chunk in response.content.iter_any():
                    content += chunk
                    if too_large := len(content) > max_size:
                        break
            if too_large:
                raise ToolError(f"The file is larger than {max_size:,} bytes, which is the most that can be read here.")
            name, kind = unquote(PurePosixPath(relative).name), response.headers.get("Content-Type")
            return DownloadedFile(name, bytes(content), kind, unquoted(response.headers.get("ETag")))

    async def metadata(self, url: str, api_key: str) -> FileInfo:
        """What Core knows of the file; succeeds only with a key that may read it."""
        relative = self.check(url, api_key)
        found = await self.get_json(f"metadata/{relative}", api_key, shortened(relative))
        return FileInfo.of({"url": relative, **found})

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str, folder: str = "") -> str:
        """Store a new file under a unique name that keeps `name` readable; returns its relative URL.

        In a `folder`, such as `ask/4f2a/`, which no other upload uses, it is stored under `name` itself.

        It goes where the user can read it: the application's folder in the user's bucket, or the key's own bucket if
        the request was not made to an application. A chart is stored without remote sources.
        """
        if is_chart(content_type):
            try:
                content = await asyncio.to_thread(without_remote_sources, content)
            except ValueError as error:
                raise ToolError(f"{shortened(name)} is not a chart: {error}") from error
        subject = f"the new file {shortened(name)}"
        home = await self.get_json("bucket", api_key, subject)
        place = f"{home.get('appdata') or home.get('bucket')}/{folder_of(api_key)}{folder}"
        readable = PurePosixPath(_UNFIT_FOR_NAMES.sub("_", name).strip(" .") or "file")
        unique = f"{readable.stem[:100]}_{uuid4().hex[:8]}{readable.suffix[:20]}"
        url = f"files/{place}{quote(name if folder else unique, safe='')}"
        return (await self.put(url, content, content_type, api_key, subject)).url

    async def put(
        self, url: str, content: bytes, content_type: str, api_key: str, subject: str, etag: str | None = None
    ) -> FileInfo:
        """Replace the version of a file that has this ETag, or make it if None is given."""
        form = aiohttp.FormData()
        form.add_field("file", io.BytesIO(content), filename=PurePosixPath(url).name, content_type=content_type)
        match = {"If-Match": etag} if etag else {"If-None-Match": "*"}
        async with self.request("PUT", url, api_key, subject, data=form, headers=match) as response:
            return FileInfo.of(await response.json(content_type=None))

    def check(self, url: str, api_key: str) -> str:
        """The file's relative URL; a file of another owner who shares this key is refused."""
        relative = canonical(file_url(url, self._endpoint))
        if not in_reach(relative, api_key):
            raise ToolError(_REFUSALS[404].format(subject=shortened(relative)))
        return relative

    async def adopt(self, url: str, api_key: str, max_size: int) -> str:
        """The URL at which this key, and those of later requests, can read a file of at most `max_size` bytes that a
        deployment has stored.

        Deployments store below their own folder of `appdata/`. Who may not read there, gets a copy: an owner whose key
        others share too, and an application, whose keys read that folder during this one request only.
        """
        relative = file_url(url, self._endpoint)
        if not relative.split("/", 2)[2].startswith("appdata/"):
            return url
        if not in_reach(relative, api_key):
            return await self._copy(relative, api_key, max_size)
        try:
            home = (await self.get_json("bucket", api_key, "the folder for new files")).get("appdata")
            foreign = home is not None and not relative.startswith(f"files/{home}/")
            return await self._copy(relative, api_key, max_size) if foreign else url
        except ToolError as error:
            logger.warning("a file of a deployment stays where it is: %s", error)
            return url

    async def _copy(self, relative: str, api_key: str, max_size: int) -> str:
        reader = str(api_key) if isinstance(api_key, OwnersKey) else api_key
        stored = await self.download(relative, reader, max_size)
        kind = stored.content_type or "application/octet-stream"
        return await self.upload(unquote(PurePosixPath(relative).name), stored.content, kind, api_key)

    async def principal(self, api_key: str, *, per_request: bool = False) -> str:
        """The id of the user's bucket, which is the same for every key of one user.

        Raises: ToolError, also where the key has to be a `per_request` one and is not.
        """
        async with self.request("GET", "bucket", api_key, "the user's bucket") as response:
            home = await response.json(content_type=None)
            if not (place := home.get("appdata") or ("" if per_request else home["bucket"])):
                raise ValueError("the key is a user's own")
            return str(place).partition("/")[0]

    async def get_json(self, path: str, api_key: str, subject: str, missing: Any = None, **query: str) -> Any:
        """The object that Core answers to `GET /v1/{path}`; `missing` in place of a 404 if it is given."""
        wanted = {name: value for name, value in query.items() if value}
        async with self.request("GET", path, api_key, subject, missing is not None, params=wanted) as response:
            found = missing if response.status == 404 else await response.json(content_type=None)
            return dict(found.items())

    @asynccontextmanager
    async def request(
        self, method: str, path: str, api_key: str, subject: str, may_miss: bool = False, **options: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Core's 200, or 404 if it `may_miss`, to a request below `/v1/`; the encoded path is sent as it is."""
        url = URL(f"{self._endpoint.rstrip('/')}/v1/{path}", encoded=True)
        options["headers"] = {**core_headers(api_key), **options.get("headers", {})}
        try:
            async with asyncio.timeout(self._seconds), AsyncExitStack() as opened:
                session = self._session or await opened.enter_async_context(new_session())
                async with session.request(method, url, allow_redirects=False, **options) as response:
                    if response.status != 200 and not (may_miss and response.status == 404):
                        raise aiohttp.ClientResponseError(response.request_info, (), status=response.status)
                    yield response
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, AttributeError) as error:
            raise ToolError(_explanation(error, subject)) from error


def _explanation(error: BaseException, subject: str) -> str:
    if isinstance(error, TimeoutError):
        return f"DIAL Core took too long to answer about {subject}. Try again later or tell the user."
    if isinstance(error, aiohttp.ClientResponseError):
        other = "DIAL Core answered status {status} about {subject}. Try again later or tell the user."
        return _REFUSALS.get(error.status, other).format(status=error.status, subject=subject)
    if isinstance(error, aiohttp.ClientError):
        return f"DIAL Core could not be reached, or broke off, about {subject}. Try again later or tell the user."
    return f"DIAL Core's answer about {subject} could not be understood. Try again later or tell the user."


def unquoted(etag: str | None) -> str | None:
    """An ETag as Core compares it."""
    return etag.strip('"') if etag else None


def filing(secret: str, folder: str) -> str:
    """The key or token with a folder for new files."""
    return FolderToken(secret, folder) if isinstance(secret, UserToken) else FolderKey(secret, folder)


def file_url(url: str, endpoint: str) -> str:
    """The relative form, `files/{bucket}/{path}`, of a file's URL on this DIAL Core.

    Accepts the relative form and `{endpoint}/v1/files/...`.

    Raises:
        ToolError: the URL names something else; the text says what a file's URL looks like.
    """
    quoted = shortened(url)
    if "?" in url or "#" in url:
        raise ToolError(f"{quoted} has a '?' or '#' part, which file URLs do not have. Use {FORM}.")
    relative = _on_endpoint(url.strip(), endpoint) if "://" in url else url.strip()
    if relative is None:
        raise ToolError(f"{quoted} is not on this DIAL Core; only its files can be read. Use {FORM}.")
    segments = relative.split("/")
    if len(segments) < 3 or segments[0] != "files" or not is_path(relative):
        raise ToolError(f"{quoted} is not the URL of a DIAL file. Use {FORM}.")
    return relative


def is_path(path: str) -> bool:
    """Whether nothing on the way can take the percent-encoded path for another one."""
    names = [unquote(segment) for segment in path.split("/")]
    return not any(name in {"", ".", ".."} or "/" in name or _CONTROL_CHARACTER.search(name) for name in names)


def encoded(name: str) -> str:
    """A name in a URL as Core writes it."""
    return quote(name, safe="-._~!$'()*,;&=@:+")


def canonical(relative: str) -> str:
    """A relative URL as Core writes it."""
    return "/".join(encoded(unquote(name)) for name in relative.split("/"))


def in_reach(relative: str, api_key: str) -> bool:
    """Whether this key may be used for the file at that relative URL."""
    return not isinstance(api_key, OwnersKey) or unquote(relative.split("/", 2)[2]).startswith(folder_of(api_key))


def folder_of(api_key: str) -> str:
    """The folder for new files with a slash at its end; empty for the top of the bucket."""
    return f"{api_key.folder}/" if isinstance(api_key, FolderKey) else ""


def shortened(url: str) -> str:
    """A URL in quotes, cut to a length that can be shown."""
    return repr(url if len(url) <= 200 else f"{url[:200]}…")


def _on_endpoint(url: str, endpoint: str) -> str | None:
    home = URL(endpoint)
    try:
        parts = URL(url, encoded=True)
        # "http://core:8080@evil/" starts like the endpoint, but its host is another.
        same = parts.origin() == home.origin() and "@" not in parts.raw_authority
    except ValueError:  # a malformed host or port
        return None
    prefix = f"{home.raw_path.rstrip('/')}/v1/"
    return parts.raw_path.removeprefix(prefix) if same and parts.raw_path.startswith(prefix) else None


def file_id_of(url: str) -> str:
    """The id of the file at `files/{bucket}/{path}`."""
    place = unquote(url.removeprefix("files/"))
    return "file-" + base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")
