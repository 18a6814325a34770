"""What an MCP server answers, as tool messages: contents of results, and failures in words a model can act on."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import unquote, urlsplit

from task.core_client.files import is_path
from task.core_client.models import SERVICE, SignIn
from task.errors import ToolError

if TYPE_CHECKING:
    import mcp.types as wire

MAX_TEXT_CHARS = 1_000_000
MAX_FILE_BYTES = 20 * 2**20
MAX_ITEMS = 1_000  # of a result, or of a page of a list
_LISTS = ("content", "contents", "messages", "tools", "resources", "resourceTemplates", "prompts")
CHALLENGE, MAX_CHALLENGES = "dial.epam.com/auth-challenge", 10
# One of the services of an application, by its path in Core.
_SCOPE = re.compile(r"[\w%.~/-]{1,300}/external_services/[\w%.~-]{1,100}", re.ASCII)
_BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True)
class MCPFile:
    """A picture, sound or file of a result: its bytes, or its `uri` on the same server; `text` where it is text."""

    name: str
    mime_type: str
    content: bytes | None = None
    uri: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class MCPSource:
    """A web page that a result rests on; the result's text about it ends at the position `end`."""

    title: str
    url: str
    summary: str
    end: int


@dataclass(frozen=True, slots=True)
class MCPResult:
    """A call's result; `structured` is JSON, or None. `sign_ins` are what the user has to sign in to before, `question`
    is what the server asks the user before it goes on."""

    text: str
    structured: Any = None
    files: tuple[MCPFile, ...] = ()
    is_error: bool = False
    sources: tuple[MCPSource, ...] = ()
    sign_ins: tuple[SignIn, ...] = ()
    question: Mapping[str, Any] | None = None


class BoundedStream(AbstractAsyncContextManager["BoundedStream"]):
    """What a transport of the SDK receives, the lists in results cut: to read a million items would take seconds, in
    the event loop. How many items of a tool's result were left out, stands in their place."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        received = await self._stream.__anext__()
        result: Any = getattr(getattr(received, "message", None), "result", None)
        for name, items in result.items() if isinstance(result, dict) else ():
            if name in _LISTS and isinstance(items, list) and (more := len(items) - MAX_ITEMS) > 0:
                note = {"type": "text", "text": f"[{more:,} further items of the result were left out]"}
                items[MAX_ITEMS:] = [note] if name == "content" else []
        return received

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()


def result_of(answer: wire.CallToolResult) -> MCPResult:
    """The SDK's result as our own: text for the model, files as bytes or links."""
    texts: list[str] = []
    files: list[MCPFile] = []
    sources: list[MCPSource] = []
    for number, item in enumerate(answer.content, 1):
        match item.type:
            case "text":
                texts.append(item.text)
            case "image" | "audio":
                ending = mimetypes.guess_extension(item.mime_type) or ""
                files.append(MCPFile(f"{item.type}_{number}{ending}", item.mime_type, _decoded(item.data)))
            case "resource_link":
                audience = (item.annotations.audience if item.annotations else None) or ()
                # A link for the model is material; one for the user, or without an audience, is a result.
                if "assistant" in audience and item.uri.startswith(("http://", "https://")):
                    end, title = len(_BETWEEN.join(texts)), item.title or item.name
                    sources.append(MCPSource(title, item.uri, item.description or title, end))
                else:
                    files.append(MCPFile(item.name, item.mime_type or _guessed(item.uri), uri=item.uri))
            case "resource":
                if (text := getattr(item.resource, "text", None)) is not None:
                    texts.append(f"{item.resource.uri}:\n{text}")
                else:
                    files.append(file_of(item.resource))
    if not any(text.strip() for text in texts) and answer.structured_content is not None:
        texts = [json.dumps(answer.structured_content, ensure_ascii=False)]  # an indent takes ten times as long
    text = _BETWEEN.join(texts)
    if (more := len(text) - MAX_TEXT_CHARS) > 0:
        text = f"{text[:MAX_TEXT_CHARS]}\n\n[... {more:,} more characters were left out]"
    failed, needed = bool(answer.is_error), _challenges(answer) if answer.is_error else ()
    return MCPResult(text, answer.structured_content, tuple(files), failed, tuple(sources), needed)


def _challenges(answer: wire.CallToolResult) -> tuple[SignIn, ...]:
    listed: Any = (answer.meta or {}).get(CHALLENGE)
    found = cast("list[Any]", listed)[:MAX_CHALLENGES] if isinstance(listed, list) else []
    scopes = [entry.get("scope") for entry in found if isinstance(entry, dict) and entry.get("method") == SERVICE]
    usable = (item for item in scopes if isinstance(item, str) and _SCOPE.fullmatch(item) and is_path(item))
    return tuple(SignIn(SERVICE, scope) for scope in usable)


def file_of(item: wire.TextResourceContents | wire.BlobResourceContents) -> MCPFile:
    """A resource that was read or enclosed."""
    name = _last_part(item.uri)
    if (text := getattr(item, "text", None)) is not None:
        return MCPFile(name, item.mime_type or "text/plain", str(text).encode(errors="replace"), text=str(text))
    return MCPFile(name, item.mime_type or _guessed(item.uri), _decoded(getattr(item, "blob", "")))


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


class Fault(StrEnum):
    """What is wrong with a server; of a group of errors, the first in this order counts."""

    CREDENTIAL = "credential"
    ADDRESS = "address"
    TOO_LARGE = "too_large"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    SESSION_GONE = "session_gone"  # the server refused before it did anything
    REFUSED = "refused"
    LOST = "lost"
    BROKEN = "broken"


class MCPFailure(ToolError):
    """An MCP server did not answer a call; the text has advice for the model, `status` is that of HTTP."""

    def __init__(self, fault: Fault, server: str, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.fault = fault
        self.server = server
        self.status = status

    @property
    def summary(self) -> str:
        """What happened, for users."""
        return str(self).partition(". ")[0].rstrip(".")


_ADVICE = "Tell the user, and answer without it or suggest another way."
_OPERATOR = "An operator has to {}; do not call it again, and tell the user."
_WORDS = {
    Fault.UNAVAILABLE: f"The server {{}} cannot be reached. {_ADVICE}",
    Fault.LOST: f"The connection to the server {{}} broke off; the call may or may not have been done. {_ADVICE}",
    Fault.SESSION_GONE: "The server {} was restarted and forgot this session. Call again.",
    Fault.TIMEOUT: "The server {} did not answer within {seconds:g} s. Try a smaller request, or tell the user.",
    Fault.CREDENTIAL: f"The server {{}} refused the credentials{{status}}. {_OPERATOR.format('look at its token')}",
    Fault.ADDRESS: "The server {} does not accept this address{status}. "
    f"{_OPERATOR.format('check its URL and its allowed hosts')}",
    Fault.TOO_LARGE: "The server {} refused the request as too large{status}. Send less at once.",
    Fault.BROKEN: f"The server {{}} answered in a way that cannot be understood{{status}}. {_ADVICE}",
}
_BY_STATUS = {
    **dict.fromkeys((401, 403), Fault.CREDENTIAL),
    **dict.fromkeys((404, 405, 421), Fault.ADDRESS),
    **dict.fromkeys((502, 504), Fault.LOST),
    408: Fault.TIMEOUT,
    413: Fault.TOO_LARGE,
    503: Fault.UNAVAILABLE,
}
_SESSION_GONE = (-32600, 32600)  # servers of the 1.x SDK send the second
_BY_CODE = {-32000: Fault.LOST, -32001: Fault.TIMEOUT, -32601: Fault.REFUSED, -32602: Fault.REFUSED}


def failure_of(
    error: BaseException, server: str, seconds: float, statuses: Sequence[int], *, session: bool
) -> MCPFailure | None:
    """`error` as a failure of the server, or None if the user stopped the call or the process ends.

    `statuses` are the HTTP errors during the call, which the SDK hides; `session`: the call used the older protocol.
    """
    leaves = list(_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt | SystemExit) for leaf in leaves) or asked_to_stop():
        return None
    # The SDK goes on to the older handshake after whatever the newer one was refused with.
    status = 401 if 401 in statuses else statuses[-1] if statuses else None
    faults = {_fault(leaf, status, session) for leaf in leaves}
    fault = next(known for known in Fault if known in faults)
    if fault is Fault.REFUSED:
        from mcp.shared.exceptions import MCPError

        message = next(leaf.message for leaf in leaves if isinstance(leaf, MCPError))
        return MCPFailure(fault, server, f"The server {server} refused the call: {message[:1000]}")
    shown = f" (status {status})" if status else ""
    return MCPFailure(fault, server, _WORDS[fault].format(server, seconds=seconds, status=shown), status)


def asked_to_stop() -> bool:
    """Whether this task was cancelled from outside; a broken transport of the SDK raises `CancelledError` by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _fault(leaf: BaseException, status: int | None, session: bool) -> Fault:
    import httpx2
    from mcp.shared.exceptions import MCPError

    match leaf:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return Fault.UNAVAILABLE
        case TimeoutError() | httpx2.TimeoutException():
            return Fault.TIMEOUT
        case asyncio.CancelledError() | httpx2.TransportError() | ConnectionError():
            return Fault.LOST
        case MCPError() if session and (status == 404 or leaf.code in _SESSION_GONE):
            return Fault.SESSION_GONE
        case MCPError() if status in _BY_STATUS:
            return _BY_STATUS[status]
        case MCPError():
            return _BY_CODE.get(leaf.code, Fault.BROKEN)
        case _:
            return Fault.BROKEN


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
