"""Results of MCP calls in our own types."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import mcp.types as wire

MAX_TEXT_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class MCPFile:
    """A picture, sound or file of a result: its bytes, or its `uri` on the same server."""

    name: str
    mime_type: str
    content: bytes | None = None
    uri: str | None = None


@dataclass(frozen=True, slots=True)
class MCPResult:
    """A call's result; `structured` is JSON, or None."""

    text: str
    structured: Any = None
    files: tuple[MCPFile, ...] = ()
    is_error: bool = False


def result_of(answer: wire.CallToolResult) -> MCPResult:
    """The SDK's result as our own: text for the model, files as bytes or links."""
    texts: list[str] = []
    files: list[MCPFile] = []
    for number, item in enumerate(answer.content, 1):
        match item.type:
            case "text":
                texts.append(item.text)
            case "image" | "audio":
                files.append(_file(f"{item.type}_{number}", item.mime_type, item.data))
            case "resource_link":
                files.append(MCPFile(item.name, item.mime_type or _guessed(item.uri), uri=item.uri))
            case "resource":
                text, file = _embedded(item.resource)
                texts.extend([text] if text else [])
                files.extend([file] if file else [])
    if not any(text.strip() for text in texts) and answer.structured_content is not None:
        texts = [json.dumps(answer.structured_content, ensure_ascii=False, indent=1)]
    return MCPResult(_joined(texts), answer.structured_content, tuple(files), bool(answer.is_error))


def files_of(contents: Iterable[wire.TextResourceContents | wire.BlobResourceContents]) -> list[MCPFile]:
    """The files of a resource that was read."""
    return [_content(item) for item in contents]


def _embedded(item: wire.TextResourceContents | wire.BlobResourceContents) -> tuple[str, MCPFile | None]:
    if (text := getattr(item, "text", None)) is not None:
        return f"{item.uri}:\n{text}", None
    return "", _content(item)


def _content(item: wire.TextResourceContents | wire.BlobResourceContents) -> MCPFile:
    name = _last_part(item.uri)
    mime_type = item.mime_type or _guessed(item.uri)
    if (text := getattr(item, "text", None)) is not None:
        return MCPFile(name, item.mime_type or "text/plain", str(text).encode())
    return MCPFile(name, mime_type, _decoded(getattr(item, "blob", "")))


def _file(stem: str, mime_type: str, data: str) -> MCPFile:
    return MCPFile(f"{stem}{mimetypes.guess_extension(mime_type) or ''}", mime_type, _decoded(data))


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _last_part(uri: str) -> str:
    parts = urlsplit(uri)
    return unquote(PurePosixPath(parts.path).name) or parts.netloc or "file"


def _guessed(uri: str) -> str:
    return mimetypes.guess_type(_last_part(uri))[0] or "application/octet-stream"


def _joined(texts: list[str]) -> str:
    text = "\n\n".join(texts)
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]}\n\n[... {len(text) - MAX_TEXT_CHARS:,} more characters were left out]"
