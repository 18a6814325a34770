"""Call the operations of an API, over connections that reach public hosts and those that the settings name."""

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from task.closing import close_all
from task.errors import ToolError
from task.permissions.hosts import is_internal
from task.tools.mcp.connection import SERVICE, CallIdentity
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.offers import Offer
from task.tools.mcp.results import Fault, MCPFailure, MCPResult
from task.tools.openapi.document import LARGEST_DOCUMENT, VARIABLE, ApiOperation, ApiSpec, operations_of

MOST_BYTES = 10**6  # of an answer
LONGEST_ERROR, PAUSE_SECONDS = 2_000, 60.0
_HEADERS = {"Accept": "application/json, */*;q=0.5", "Accept-Encoding": "identity"}
_TEXT = re.compile(r"$|text/|.*(json|xml|yaml|javascript|urlencoded)", re.IGNORECASE)
_UNCERTAIN = "A change may have been made all the same: do not simply repeat it. Tell the user."
_ADVICE = {
    3: "It leads to another address, which is not followed. Tell the user.",
    4: "Correct the arguments, or tell the user.",
    5: _UNCERTAIN,
    401: "An operator has to look at its `secret`: do not call it again, and tell the user.",
    429: "It has had too many requests: do not call it again in this answer.",
}


class ApiClient(MCPClient):
    """An API as its OpenAPI document describes it, in the place of an MCP server; nothing of the caller is sent.

    The document is read when it is first needed, and again only if that failed, after a pause; `download` reads a file
    in DIAL.
    """

    kind = "API"

    def __init__(self, spec: ApiSpec, download: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(spec.document, timeout=spec.seconds, name=spec.name)
        self._spec, self._download = spec, download
        self._operations: Mapping[str, ApiOperation] | None = None
        self._again = 0.0  # when a document that could not be read is read again
        self._pools: dict[bool, aiohttp.ClientSession] = {}  # for hosts that the settings name, and for others

    async def offer(self, *, identity: CallIdentity = SERVICE) -> Offer:
        """Raises: MCPFailure: the document cannot be read."""
        if self._operations is None:
            if self.failure is not None and monotonic() < self._again:
                raise self.failure
            try:
                content = await self._content()
                self._operations, self.left_out = await asyncio.to_thread(operations_of, content, self._spec)
            except (ToolError, OSError) as error:
                reason = str(error) if isinstance(error, ToolError) else "There is no such file."
                text, self._again = f"Its OpenAPI document is not used: {reason}", monotonic() + PAUSE_SECONDS
                self.failure = MCPFailure(Fault.UNAVAILABLE, self.name, text)
                raise self.failure from None
            self.failure = None
        return Offer([operation.tool for operation in self._operations.values()])

    async def call(self, name: str, arguments: dict[str, Any], **_: Any) -> MCPResult:
        """The answer's text. Raises: ToolError: there is none."""
        await self.offer()
        operation = (self._operations or {})[name]
        request = _request(operation, arguments, self._spec)
        async with self._slots.place():
            status, kind, content = await self._exchange(operation.method, *request, most=MOST_BYTES)
        text, secret = content[:MOST_BYTES].decode(errors="replace") if _TEXT.match(kind) else "", self._spec.secret
        for written in {secret, quote(secret, ""), json.dumps(secret)[1:-1]} if secret else ():
            text = text.replace(written, "***")
        if status >= 300:
            advice = _ADVICE.get(status) or _ADVICE[min(status // 100, 5)]
            raise ToolError(f"{self.name} answered with status {status}. {advice}\n\n{text[:LONGEST_ERROR]}".rstrip())
        if content and not text:
            raise ToolError(f"{self.name} answered with what is not text ({kind[:80]}). Tell the user.")
        more = f"\n\n[... the rest, beyond {MOST_BYTES:,} bytes, was not read]" if len(content) > MOST_BYTES else ""
        return MCPResult(f"{text}{more}" or f"Done: status {status}, without content.")

    async def close(self) -> None:
        await close_all(super().close, *(pool.close for pool in self._pools.values()))

    async def _content(self) -> bytes:
        place = self._spec.document
        if place.startswith("files/"):
            return await self._download(place)
        if not place.startswith("http"):
            return await asyncio.to_thread(Path(place).read_bytes)
        status, _, content = await self._exchange("get", URL(place), {}, None, most=LARGEST_DOCUMENT)
        if status != 200:
            raise ToolError(f"Its server answered with status {status}.")
        return content

    async def _exchange(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, *, most: int
    ) -> tuple[int, str, bytes]:
        """Status, type and content of the answer, of which little more than `most` bytes are read."""
        content, timeout = bytearray(), aiohttp.ClientTimeout(total=self.timeout)
        if (named := self._spec.names(url)) not in self._pools:
            connector = aiohttp.TCPConnector(socket_factory=None if named else _to_public_address)
            jar = aiohttp.DummyCookieJar()
            self._pools[named] = aiohttp.ClientSession(connector=connector, cookie_jar=jar, auto_decompress=False)
        send = partial(self._pools[named].request, method, url, headers={**_HEADERS, **headers}, data=body)
        try:
            async with send(allow_redirects=False, timeout=timeout) as response:
                while len(content) <= most and (piece := await response.content.readany()):
                    content += piece
                return response.status, response.headers.get("Content-Type", ""), bytes(content)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:  # whose texts may have the secret
            raise ToolError(f"{self.name} did not answer ({type(error).__name__}). {_UNCERTAIN}") from None


def _to_public_address(info: tuple[Any, ...]) -> socket.socket:
    # The address that the name has led to just now, to which the connection is made.
    if is_internal(info[4][0]):
        raise OSError("an internal address")
    return socket.socket(*info[:3])


def _request(operation: ApiOperation, arguments: Mapping[str, Any], spec: ApiSpec) -> tuple[URL, dict[str, str], Any]:
    """Address, headers and body of the call. Raises: ToolError: it cannot be sent."""
    import uritemplate

    parts: dict[str, dict[str, Any]] = {"url": {}, "header": {}, "body": {}}
    for name, (where, own) in operation.places.items():
        if (value := arguments.get(name)) is not None:
            values = cast("list[Any]", value) if isinstance(value, list) else [value]
            texts = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in values]
            parts[where][own] = value if where == "body" else texts
    in_path = [text for own in VARIABLE.findall(operation.url.partition("{?")[0]) for text in parts["url"][own] or [""]]
    if {"", ".", ".."}.intersection(step for text in in_path for step in re.split(r"[/\\]", text)):
        raise ToolError("What becomes part of a path must not be empty, begin with a slash, or have `.` or `..` in it.")
    headers = {own: ",".join(texts) for own, texts in parts["header"].items()}
    if not all(text.isascii() and text.isprintable() for text in headers.values()):
        raise ToolError("Headers must be printable ASCII.")
    if spec.secret:
        bearer = {"Authorization": f"Bearer {spec.secret}"}
        headers |= bearer if spec.auth == "bearer" else {spec.auth: spec.secret}
    url = URL(uritemplate.expand(operation.url, parts["url"]), encoded=True)
    if body := parts["body"]:
        return url, headers | {"Content-Type": operation.media}, orjson.dumps(body["body"])
    return url, headers, None
