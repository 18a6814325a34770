"""Files of DIAL Core for a tool that was made without the process's shared connections."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol
from urllib.parse import quote, unquote
from uuid import uuid4

from task.errors import ToolError
from task.llm.dial import client_credentials

SECONDS = 60


class NamedFile(Protocol):
    """A file as Core tells of it; `etag` names its version."""

    @property
    def name(self) -> str: ...
    @property
    def etag(self) -> str | None: ...


class Content(Protocol):
    @property
    def content(self) -> bytes: ...


class ConversationFiles(Protocol):
    """Files of the caller, with the caller's key; `DialFiles` is the product's. All raise ToolError."""

    async def metadata(self, url: str, api_key: str) -> NamedFile: ...
    async def download(self, url: str, api_key: str, max_size: int) -> Content: ...
    async def upload(self, name: str, content: bytes, content_type: str, api_key: str) -> str: ...


@dataclass(frozen=True, slots=True)
class OwnFile:
    name: str
    etag: str | None = None
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """`ConversationFiles` with a client made for each call."""

    endpoint: str

    async def metadata(self, url: str, api_key: str) -> OwnFile:
        with _explained(url):
            async with self._client(api_key) as client:
                found = await client.files.get_metadata(url)
                return OwnFile(found.name or unquote(PurePosixPath(url).name), found.etag)

    async def download(self, url: str, api_key: str, max_size: int) -> OwnFile:
        content = bytearray()
        with _explained(url):
            async with self._client(api_key) as client, client.files.stream_download(url) as answer:
                async for chunk in answer:
                    content += chunk
                    if len(content) > max_size:
                        raise ToolError(f"The file is larger than {max_size:,} bytes.")
                return OwnFile(answer.filename, content=bytes(content))

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str) -> str:
        path = PurePosixPath(name)
        unique = f"{path.stem}_{uuid4().hex[:8]}{path.suffix}"
        with _explained(name):
            async with self._client(api_key) as client:
                home = await client.bucket.get_raw()
                url = f"files/{home.appdata or home.bucket}/{quote(unique, safe='')}"
                item = await client.files.upload(url, (unique, content, content_type), etag_if_none_match="*")
                return item.url

    def _client(self, api_key: str) -> Any:
        from aidial_client import AsyncDial

        return AsyncDial(base_url=self.endpoint, **client_credentials(api_key), timeout=SECONDS)


@contextmanager
def _explained(subject: str) -> Generator[None]:
    import httpx
    from aidial_client import DialException

    try:
        yield
    except (DialException, httpx.HTTPError, httpx.StreamError) as error:
        raise ToolError(f"DIAL Core did not give or take {subject[:200]!r}. Try again, or tell the user.") from error
