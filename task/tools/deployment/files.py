"""Files sent to a deployment and received from it: always URLs of this Core, never content."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import PurePosixPath
from urllib.parse import unquote, unquote_to_bytes

from task.conversation.messages import Attachment
from task.core_client.files import DialFiles
from task.core_client.urls import file_url
from task.errors import ToolError

MAX_BYTES = 50 * 2**20
_CARD_CHARS = 40_000  # a longer text is a file
_FILE_URL = re.compile(r"files/[^/\s?#]+/[^\s?#]+")
_DATA_IN_TEXT = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]{64,})")
_MEDIA = ("image/", "audio/", "video/")


def passed_files(urls: Sequence[str], endpoint: str, accepted: Sequence[str]) -> tuple[Attachment, ...]:
    """The files the model named, as attachments of a request; Core checks that the caller may read them.

    Raises:
        ToolError: one is not a file of this Core, or has a type the deployment does not accept.
    """
    return tuple(_passed(url, endpoint, accepted) for url in dict.fromkeys(urls))


def _passed(url: str, endpoint: str, accepted: Sequence[str]) -> Attachment:
    relative = file_url(url, endpoint)
    name = unquote(PurePosixPath(relative).name)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if not any(fnmatch(kind, pattern) for pattern in accepted):
        raise ToolError(f"{name!r} ({kind}) cannot be passed on: only {', '.join(accepted)} can.")
    return Attachment(kind, name, url=relative)


def without_content(text: str) -> tuple[str, tuple[Attachment, ...]]:
    """A text without the `data:` URLs in it, and the files these contained."""
    files = tuple(Attachment(kind, "File", data=data) for kind, data in _DATA_IN_TEXT.findall(text))
    return (_DATA_IN_TEXT.sub("attached", text), files) if files else (text, ())


async def stored(
    attachments: Sequence[Attachment], endpoint: str, files: DialFiles, api_key: str, max_bytes: int
) -> tuple[Attachment, ...]:
    """The attachments with their content stored as files of the caller; URLs and short texts stay as they are.

    Raises:
        ToolError: an attachment is damaged, larger than `max_bytes`, or cannot be stored.
    """
    return tuple([await _stored(item, endpoint, files, api_key, max_bytes) for item in attachments])


async def _stored(item: Attachment, endpoint: str, files: DialFiles, api_key: str, max_bytes: int) -> Attachment:
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
