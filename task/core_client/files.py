"""Read and write files of DIAL Core with the caller's key, which may restrict them to a folder."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote
from uuid import uuid4

import aiohttp
from yarl import URL

from task.core_client.models import DownloadedFile
from task.errors import ToolError
from task.llm.dial import UserToken, core_headers
from task.llm.transport import KEEP_ALIVE_SECONDS, new_session, no_cookies
from task.output.charts import is_chart, without_remote_sources
from task.telemetry.operations import join_trace

if TYPE_CHECKING:  # their import takes most of a second; `DialFiles.open` loads them off the event loop
    import httpx
    from aidial_client import AsyncDial, AsyncDialClientPool

logger = logging.getLogger(__name__)
_SECONDS = 60.0
_REFUSALS = {
    400: "DIAL Core refuses {subject} as malformed. Use the URL exactly as it stands in the attachments.",
    401: "DIAL Core does not accept this request's key, so {subject} cannot be reached. Answer without it.",
    403: "No access to {subject}. Ask the user to attach it to the message: only attached files can be read.",
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


class DialFiles:
    """Files of one DIAL Core, over one pool of connections that is opened on first use unless it is given.

    A call lasts at most `seconds`. Keys go to `endpoint` only: URLs of other hosts are refused unsent.

    Raises:
        ToolError: by every method that fails; the text says to the model what to do next.
    """

    def __init__(
        self,
        endpoint: str,
        pool: AsyncDialClientPool | None = None,
        *,
        session: aiohttp.ClientSession | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        self._endpoint = endpoint
        self._pool = pool
        self._session = session
        self._opening = asyncio.Lock()
        self._seconds = seconds

    async def open(self) -> AsyncDialClientPool:
        """The pool; its libraries are imported in a thread, so that nothing else waits."""
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncio.to_thread(_new_pool)
            return self._pool

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile:
        """The file at `files/{bucket}/{path}` or `{endpoint}/v1/files/...`, of at most `max_size` bytes."""
        relative = self.check(url, api_key)
        async with (
            self.client(api_key, shortened(relative)) as client,
            client.files.stream_download(relative) as answer,
        ):
            content = bytearray()
            too_large = int(answer.headers.get("content-length", 0)) > max_size
            if not too_large:
                async for chunk in answer:
                    content += chunk
                    if too_large := len(content) > max_size:
                        break
            if too_large:
                raise ToolError(f"The file is larger than {max_size:,} bytes, which is the most that can be read here.")
            etag = unquoted(answer.headers.get("etag"))
            return DownloadedFile(answer.filename, bytes(content), answer.content_type, etag)

    async def metadata(self, url: str, api_key: str) -> FileInfo:
        """What Core knows of the file; succeeds only with a key that may read it."""
        relative = self.check(url, api_key)
        async with self.client(api_key, shortened(relative)) as client:
            found = await client.files.get_metadata(relative)
            name = found.name or unquote(PurePosixPath(relative).name)
            return FileInfo(found.url, name, found.content_length, found.content_type, unquoted(found.etag))

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
        async with self.client(api_key, f"the new file {shortened(name)}") as client:
            home = await client.bucket.get_raw()
            readable = PurePosixPath(_UNFIT_FOR_NAMES.sub("_", name).strip(" .") or "file")
            unique = f"{readable.stem[:100]}_{uuid4().hex[:8]}{readable.suffix[:20]}"
            file_name = name if folder else unique
            url = f"files/{home.appdata or home.bucket}/{folder_of(api_key)}{folder}{quote(file_name, safe='')}"
            item = await client.files.upload(url, (file_name, content, content_type), etag_if_none_match="*")
            return item.url

    def check(self, url: str, api_key: str) -> str:
        """The file's relative URL; a file of another owner who shares this key is refused."""
        relative = file_url(url, self._endpoint)
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
            async with self.client(api_key, "the folder for new files") as client:
                home = (await client.bucket.get_raw()).appdata
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
        try:
            home = await self.get_json("bucket", api_key, "the user's bucket")
            if per_request and not home.get("appdata"):
                raise ValueError("the key is a user's own")
            return str(home.get("appdata") or home["bucket"]).partition("/")[0]
        except (ValueError, KeyError, AttributeError) as error:
            raise ToolError(_explanation(error, "the user's bucket")) from error

    async def get_json(self, path: str, api_key: str, subject: str, missing: Any = None) -> Any:
        """What Core answers to `GET /v1/{path}`, which is sent as it is; `missing` in place of a 404 if it is given."""
        # Every answer with tools asks this way, and the client library takes longer than the rest of the answer.
        url = URL(f"{self._endpoint.rstrip('/')}/v1/{path}", encoded=True)
        try:
            async with asyncio.timeout(self._seconds), AsyncExitStack() as opened:
                session = self._session or await opened.enter_async_context(new_session())
                async with session.get(url, headers=core_headers(api_key), allow_redirects=False) as response:
                    if response.status == 404 and missing is not None:
                        return missing
                    response.raise_for_status()
                    return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ToolError(_explanation(error, subject)) from error

    async def close(self) -> None:
        """Close the pool, for all who share it."""
        if self._pool is not None:
            await self._pool.aclose()

    @asynccontextmanager
    async def client(self, api_key: str, subject: str) -> AsyncGenerator[AsyncDial]:
        """The client library with this key; its failures are sentences about the `subject`."""
        pool = await self.open()
        import httpx
        from aidial_client import DialException

        secret, timeout = str(api_key), httpx.Timeout(30, connect=5)
        key, token = (None, secret) if isinstance(api_key, UserToken) else (secret, None)
        try:
            async with asyncio.timeout(self._seconds):
                yield pool.create_client(
                    base_url=self._endpoint, api_key=key, bearer_token=token, max_retries=1, timeout=timeout
                )
        except (DialException, httpx.HTTPError, httpx.StreamError, TimeoutError) as error:
            raise ToolError(_explanation(error, subject)) from error


class UnpooledFiles(DialFiles):
    """`DialFiles` of a tool that is never closed: each call opens and closes connections of its own."""

    @asynccontextmanager
    async def client(self, api_key: str, subject: str) -> AsyncGenerator[AsyncDial]:
        files = DialFiles(self._endpoint, seconds=self._seconds)
        try:
            async with files.client(api_key, subject) as client:
                yield client
        finally:
            await files.close()


def _new_pool() -> AsyncDialClientPool:
    import httpx
    from aidial_client import AsyncDialClientPool

    async def join(request: httpx.Request) -> None:
        join_trace(request.headers)

    limits = httpx.Limits(max_connections=1000, keepalive_expiry=KEEP_ALIVE_SECONDS)
    return AsyncDialClientPool(connection_limits=limits, cookies=no_cookies(), event_hooks={"request": [join]})


def _explanation(error: BaseException, subject: str) -> str:
    import httpx

    # A refused stream_download of aidial-client ends in httpx.ResponseNotRead; the status is only in what led to it.
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, TimeoutError | httpx.TimeoutException):
            return f"DIAL Core took too long to answer about {subject}. Try again later or tell the user."
        if isinstance(link, httpx.HTTPStatusError | aiohttp.ClientResponseError):
            status = link.status if isinstance(link, aiohttp.ClientResponseError) else link.response.status_code
            other = "DIAL Core answered status {status} about {subject}. Try again later or tell the user."
            return _REFUSALS.get(status, other).format(status=status, subject=subject)
        if isinstance(link, httpx.TransportError | aiohttp.ClientError):
            return f"DIAL Core could not be reached, or broke off, about {subject}. Try again later or tell the user."
        link = link.__cause__ or link.__context__
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
