"""Read and write the URLs under which Core keeps resources: `files/{bucket}/{path}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from task.local.core.responses import Refusal

RESOURCE_TYPES = {
    "files": "FILE",
    "conversations": "CONVERSATION",
    "prompts": "PROMPT",
}
"""The first segment of a resource's URL, and the name of that type in metadata."""

PUBLIC_BUCKET = "public"
MAX_PATH_BYTES = 900

_UNESCAPED = "-._~!$'()*,;&=@:+"
_ENCODED_SEGMENT = re.compile(r"(?:[A-Za-z0-9\-._~!$'()*,;&=@:+]|%[0-9A-Fa-f]{2}|[^\x00-\x7f])+")
_BUCKET = re.compile(r"[A-Za-z0-9]+")
_ILLEGAL_CHARACTER = re.compile(r"[\x00-\x1f/{}]")
_METADATA_PREFIX = "metadata/"


class InvalidUrl(Refusal):
    """A URL that names no resource; Core refuses it with 400 and this text."""

    def __init__(self, text: str) -> None:
        super().__init__(400, text)


@dataclass(frozen=True, slots=True)
class ResourceUrl:
    """A parsed URL. `segments` are the decoded names below the bucket; a bucket's root is a folder without segments."""

    type: str
    bucket: str
    segments: tuple[str, ...]
    is_folder: bool

    @property
    def name(self) -> str | None:
        return self.segments[-1] if self.segments else None

    @property
    def parent_path(self) -> str | None:
        return "/".join(self.segments[:-1]) or None

    @property
    def path(self) -> str:
        """The decoded path below the bucket; a folder's ends in `/`, the root's is empty."""
        joined = "/".join(self.segments)
        return f"{joined}/" if self.is_folder and joined else joined

    @property
    def url(self) -> str:
        """The canonical, encoded, relative URL."""
        encoded = "/".join(encode_segment(segment) for segment in self.segments)
        tail = f"{encoded}/" if self.is_folder and encoded else encoded
        return f"{self.type}/{self.bucket}/{tail}"

    @property
    def ends_in_dot(self) -> bool:
        """Whether the name or a folder on the way to it ends in a dot, which no new resource may."""
        return any(segment.endswith(".") for segment in self.segments)

    def contains(self, other: ResourceUrl) -> bool:
        """Whether `other` is this folder or lies below it, by whole names."""
        if not self.is_folder or (self.type, self.bucket) != (other.type, other.bucket):
            return False
        if other.segments == self.segments:
            return other.is_folder
        return other.segments[: len(self.segments)] == self.segments


def encode_segment(segment: str) -> str:
    """One name, percent-encoded the way Core writes it into URLs."""
    return quote(segment, safe=_UNESCAPED)


def parse(url: str) -> ResourceUrl:
    """The resource that a relative URL, `{type}/{bucket}/{path}` or `metadata/{type}/{bucket}/.../`, names.

    Raises:
        InvalidUrl: the URL breaks one of Core's rules.
    """
    bare = url.removeprefix(_METADATA_PREFIX)
    if bare != url and not url.endswith("/"):
        raise InvalidUrl(f"Metadata url must name a folder: {url}")
    kind, _, rest = bare.partition("/")
    if kind not in RESOURCE_TYPES:
        raise InvalidUrl(f"Url has unsupported resource type: {url}")
    bucket, slash, path = rest.partition("/")
    if not slash or not _BUCKET.fullmatch(bucket):
        raise InvalidUrl(f"Url has invalid bucket: {url}")
    segments = tuple(_decoded(segment, url) for segment in path.removesuffix("/").split("/")) if path else ()
    parsed = ResourceUrl(kind, bucket, segments, is_folder=not path or path.endswith("/"))
    if len(parsed.path.encode()) > MAX_PATH_BYTES:
        raise InvalidUrl(f"Resource path exceeds max allowed size: {MAX_PATH_BYTES}")
    return parsed


def canonical(url: str) -> str:
    """The one spelling of a relative URL; `metadata/` stays in front of a folder that was given with it.

    Raises:
        InvalidUrl: the URL breaks one of Core's rules.
    """
    prefix = _METADATA_PREFIX if url.startswith(_METADATA_PREFIX) else ""
    return prefix + parse(url).url


def _decoded(segment: str, url: str) -> str:
    if not _ENCODED_SEGMENT.fullmatch(segment):
        raise InvalidUrl(f"Invalid path provided {url}")
    try:
        name = unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidUrl(f"Invalid path provided {url}") from error
    # "." and ".." are ordinary names to Core, but every client and proxy on the way resolves them.
    if name in {".", ".."} or _ILLEGAL_CHARACTER.search(name):
        raise InvalidUrl(f"Invalid path provided {url}")
    return name
