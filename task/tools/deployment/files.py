"""The files that go to a deployment and come from it: always as URLs of this Core, never as content."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Protocol
from urllib.parse import quote, unquote, unquote_to_bytes
from uuid import uuid4

from task.conversation.messages import Attachment
from task.errors import ToolError
from task.llm.dial import client_credentials

MAX_BYTES = 50 * 2**20
_CARD_CHARS = 40_000  # a longer text is a file
_FILE_URL = re.compile(r"files/[^/\s?#]+/[^\s?#]+")
_DATA_IN_TEXT = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]{64,})")
_MEDIA = ("image/", "audio/", "video/")
_UPLOAD_SECONDS = 60


class FileUploads(Protocol):
    """Where new files are put; `DialFiles` is the one of the product. Raises ToolError.

    `adopt` tells where the caller can read a file that a deployment has stored; `check` refuses a file that is not the
    caller's though the key could read it.
    """

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str) -> str: ...
    async def adopt(self, url: str, api_key: str, max_size: int) -> str: ...
    def check(self, url: str, api_key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class OwnUploads:
    """Puts files beside the application's own in the user's bucket, with a client made for each of them."""

    endpoint: str

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str) -> str:
        import httpx
        from aidial_client import AsyncDial, DialException

        try:
            credentials = client_credentials(api_key)
            async with AsyncDial(base_url=self.endpoint, **credentials, timeout=_UPLOAD_SECONDS) as client:
                home = await client.bucket.get_raw()
                path = PurePosixPath(name)
                unique = f"{path.stem}_{uuid4().hex[:8]}{path.suffix}"
                url = f"files/{home.appdata or home.bucket}/{quote(unique, safe='')}"
                item = await client.files.upload(url, (unique, content, content_type), etag_if_none_match="*")
                return item.url
        except (DialException, httpx.HTTPError) as error:
            raise ToolError("DIAL Core did not store the new file. Try again later, or tell the user.") from error

    async def adopt(self, url: str, api_key: str, max_size: int) -> str:
        """The same: the key is the caller's own."""
        return url

    def check(self, url: str, api_key: str) -> None:
        """Nothing: Core knows whose key it is."""


def passed_files(urls: Sequence[str], endpoint: str, accepted: Sequence[str]) -> tuple[Attachment, ...]:
    """The files the model named as attachments of a request; Core itself checks that the caller may read them.

    Raises:
        ToolError: one is no file of this Core, or of a type the deployment does not take.
    """
    return tuple(_passed(url, endpoint, accepted) for url in dict.fromkeys(urls))


def _passed(url: str, endpoint: str, accepted: Sequence[str]) -> Attachment:
    relative = _relative(url.strip(), endpoint)
    if not _FILE_URL.fullmatch(relative):
        raise ToolError(f"{url[:200]!r} is no file of this conversation. Use files/{{bucket}}/{{path}} as attached.")
    name = unquote(PurePosixPath(relative).name)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if not any(fnmatch(kind, pattern) for pattern in accepted):
        raise ToolError(f"{name!r} ({kind}) cannot be passed on: only {', '.join(accepted)} can.")
    return Attachment(kind, name, url=relative)


def without_content(text: str) -> tuple[str, tuple[Attachment, ...]]:
    """A text without the files that are written out in it as `data:` URLs, and those files."""
    files = tuple(Attachment(kind, "File", data=data) for kind, data in _DATA_IN_TEXT.findall(text))
    return (_DATA_IN_TEXT.sub("attached", text), files) if files else (text, ())


async def stored(
    attachments: Sequence[Attachment], endpoint: str, files: FileUploads, api_key: str, max_bytes: int
) -> tuple[Attachment, ...]:
    """The attachments as they can be shown and kept: what came as content is a file of the caller's now.

    URLs stay as they are, and so do texts that are short enough for a card.

    Raises:
        ToolError: a content is damaged, larger than `max_bytes`, or cannot be stored.
    """
    return tuple([await _stored(item, endpoint, files, api_key, max_bytes) for item in attachments])


async def _stored(item: Attachment, endpoint: str, files: FileUploads, api_key: str, max_bytes: int) -> Attachment:
    if item.url is not None and not item.url.startswith("data:"):
        relative = _relative(item.url, endpoint)
        kind = item.type or mimetypes.guess_type(relative)[0]
        if _FILE_URL.fullmatch(relative):
            relative = await files.adopt(relative, api_key, max_bytes)
        return replace(item, url=relative, type=kind)
    if item.url is None and _is_card(item):
        return item
    kind, content = _content(item, max_bytes)
    name = f"{_file_name(item.title)}{mimetypes.guess_extension(kind) or ''}"
    return replace(item, type=kind, data=None, url=await files.upload(name, content, kind, api_key))


def _is_card(item: Attachment) -> bool:
    text = item.type is None or item.type.startswith("text/")
    return text and len(item.data or "") <= _CARD_CHARS


def _content(item: Attachment, max_bytes: int) -> tuple[str, bytes]:
    kind, data, encoded = item.type or "application/octet-stream", item.data or "", True
    if item.url is not None:
        head, _, data = item.url.removeprefix("data:").partition(",")
        kind, encoded = head.split(";", 1)[0] or kind, head.endswith(";base64")
    if len(data) > max_bytes * 4 // 3 + 4:
        raise ToolError(f"The deployment answered with a file of more than {max_bytes:,} bytes. Ask for less.")
    return kind, _decoded(unquote(data), kind) if encoded else unquote_to_bytes(data)


def _decoded(data: str, kind: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        if kind.startswith(_MEDIA):
            raise ToolError("The deployment answered with a damaged file. Try again, or tell the user.") from None
        return data.encode()  # text, such as the JSON of a chart


def _relative(url: str, endpoint: str) -> str:
    return url.removeprefix(f"{endpoint.rstrip('/')}/v1/")


def _file_name(title: str | None) -> str:
    return re.sub(r"[^\w-]+", "_", title or "").strip("_")[:60] or "file"
