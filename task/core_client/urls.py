"""Recognise URLs of DIAL files, and the keys and tokens that restrict them to a folder."""

from __future__ import annotations

import base64
import re
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

from task.errors import ToolError
from task.llm.dial import UserToken


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


def filing(secret: str, folder: str) -> str:
    """The key or token with a folder for new files."""
    return FolderToken(secret, folder) if isinstance(secret, UserToken) else FolderKey(secret, folder)


_DEFAULT_PORTS = {"http": 80, "https": 443}
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")
FORM = "files/{bucket}/{path}, as it stands in the message's attachments"


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
    names = [unquote(segment) for segment in segments]
    unfit = any(name in {"", ".", ".."} or "/" in name or _CONTROL_CHARACTER.search(name) for name in names)
    if len(segments) < 3 or segments[0] != "files" or unfit:
        raise ToolError(f"{quoted} is not the URL of a DIAL file. Use {FORM}.")
    return relative


def own(relative: str, api_key: str) -> str:
    """The relative URL.

    Raises:
        ToolError: the key belongs to an owner and the file is not in that owner's folder.
    """
    if not in_reach(relative, api_key):
        raise ToolError(f"There is no {shortened(relative)}. Check the URL, or ask the user to attach the file again.")
    return relative


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
    home = urlsplit(endpoint)
    try:
        parts = urlsplit(url)
        same = _origin(parts) == _origin(home)
    except ValueError:  # a malformed host or port
        return None
    prefix = f"{home.path.rstrip('/')}/v1/"
    # "http://core:8080@evil/" starts like the endpoint, but its host is another.
    if not same or "@" in parts.netloc or not parts.path.startswith(prefix):
        return None
    return parts.path.removeprefix(prefix)


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)


def file_id_of(url: str) -> str:
    """The id of the file at `files/{bucket}/{path}`."""
    place = unquote(url.removeprefix("files/"))
    return "file-" + base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")
