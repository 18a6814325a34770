"""Where the tool's files come from when nobody shares a source with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol
from urllib.parse import unquote

from task.errors import ToolError
from task.llm.dial import client_credentials

_FORM = "files/{bucket}/{path}, as it stands in the message's attachments"


class FileInfo(Protocol):
    """What Core tells of a file the key may read."""

    @property
    def url(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def etag(self) -> str | None: ...


class FileContent(Protocol):
    """A file's bytes."""

    @property
    def name(self) -> str: ...
    @property
    def content(self) -> bytes: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def etag(self) -> str | None: ...


class FileSource(Protocol):
    """Files of one DIAL Core, read with the caller's key. Raises ToolError."""

    async def metadata(self, url: str, api_key: str) -> FileInfo: ...

    async def download(self, url: str, api_key: str, max_size: int) -> FileContent: ...


@dataclass(frozen=True, slots=True)
class _Info:
    url: str
    name: str
    content_type: str | None
    etag: str | None


@dataclass(frozen=True, slots=True)
class _Content:
    name: str
    content: bytes
    content_type: str | None
    etag: str | None


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """Asks the Core at `endpoint` with a client made for each call."""

    endpoint: str

    async def metadata(self, url: str, api_key: str) -> _Info:
        import httpx
        from aidial_client import AsyncDial, DialException

        try:
            async with AsyncDial(base_url=self.endpoint, **client_credentials(api_key)) as client:
                found = await client.files.get_metadata(url)
        except (DialException, httpx.HTTPError) as error:
            raise ToolError(f"DIAL Core does not give this key the file {url[:200]!r}. Use {_FORM}.") from error
        name = found.name or unquote(PurePosixPath(url).name)
        return _Info(found.url, name, found.content_type, _unquoted(found.etag))

    async def download(self, url: str, api_key: str, max_size: int) -> _Content:
        import httpx
        from aidial_client import AsyncDial, DialException

        content = bytearray()
        try:
            async with (
                AsyncDial(base_url=self.endpoint, **client_credentials(api_key)) as client,
                client.files.stream_download(url) as answer,
            ):
                async for piece in answer:
                    content += piece
                    if len(content) > max_size:
                        raise ToolError(
                            f"The file is larger than {max_size:,} bytes, which is the most that can be read."
                        )
                return _Content(
                    answer.filename, bytes(content), answer.content_type, _unquoted(answer.headers.get("etag"))
                )
        except (DialException, httpx.HTTPError, httpx.StreamError) as error:
            raise ToolError(f"DIAL Core does not give this key the file {url[:200]!r}. Use {_FORM}.") from error


def _unquoted(etag: str | None) -> str | None:
    return etag.strip('"') if etag else None
