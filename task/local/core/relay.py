"""Pass a request on to an application, model or MCP server, and its response back as it arrives.

Files that a request or its response attaches are shared on the way.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from task.llm.transport import sendable
from task.local.core.access import parse
from task.local.core.responses import PlainResponse, Refusal

logger = logging.getLogger(__name__)
Share = Callable[[list[str]], None]
Rewrite = Callable[[bytes], bytes]
UNREACHABLE = {"message": "Failed to connect to origin", "code": "502"}
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length"})
_NOT_PASSED = _HOP_BY_HOP | {"host", "proxy-authenticate", "proxy-authorization", "accept-encoding"}
# What these begin is Core's own word to an application: no caller may say it.
_FOR_CORE = ("api-key", "x-dial-application-", "x-dial-deployment-", "x-dial-override-name")
_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_ABSOLUTE = re.compile(r"data:|[A-Za-z][A-Za-z0-9+.-]*://")
_HOLDERS = frozenset({"attachments", "image_url", "custom_input"})  # what has a URL
_PATHS = _HOLDERS | {"messages", "content", "custom_content", "stages", "choices", "delta", "message"}


async def send(
    session: aiohttp.ClientSession,
    request: web.Request,
    url: str,
    headers: CIMultiDict[str],
    body: bytes,
    *,
    swallowed: frozenset[int] = frozenset(),
    share: Share | None = None,
    rewrite: Rewrite | None = None,
) -> web.StreamResponse:
    """The response of `url`, as it arrives.

    A status among `swallowed` is kept from the caller, who gets a 502, or a 503 for a 429. `share` gets the canonical
    URLs of the files that the response attaches, before the caller sees them. `rewrite` replaces the whole body.

    Raises:
        Refusal: 502 where nothing answers or the connection breaks before the response has begun.
    """
    response: web.StreamResponse | None = None
    target = URL(url, encoded=True)
    try:
        async with session.request(
            request.method,
            target,
            headers=headers,
            data=sendable(body) if body else None,
            allow_redirects=False,
            skip_auto_headers=_AUTO_HEADERS,
            auto_decompress=False,
        ) as origin:
            if origin.status == 429 and 429 in swallowed:
                wait = origin.headers.get("Retry-After")
                return PlainResponse(503, "Service is not available", {"Retry-After": wait} if wait else None)
            if origin.status in swallowed:
                return PlainResponse(502, "No route")
            passed = _end_to_end(origin.headers)
            response = web.StreamResponse(status=origin.status, reason=origin.reason, headers=passed)
            await response.prepare(request)
            await (_pump(origin, response, share) if rewrite is None else response.write(rewrite(await origin.read())))
            await response.write_eof()
    except aiohttp.ClientConnectorError as error:
        logger.warning("nothing answers at %s (%s)", target.origin(), error.os_error.strerror)
        raise Refusal(502, UNREACHABLE) from None
    except (aiohttp.ClientError, TimeoutError):
        if response is None:
            raise Refusal(502, "No route") from None
        if request.transport is not None:  # so that half a response does not look complete
            request.transport.close()
    return response


async def _pump(origin: aiohttp.ClientResponse, response: web.StreamResponse, share: Share | None) -> None:
    is_stream = "text/event-stream" in origin.headers.get("Content-Type", "")
    waiting = bytearray()
    async for data in origin.content.iter_any():
        if share is not None:
            waiting += data
            if is_stream and b"\n" in data:
                # Rights first: the caller may read an attached file as soon as it sees its URL.
                end = waiting.rfind(b"\n") + 1
                share(response_files(bytes(waiting[:end])))
                del waiting[:end]
        await response.write(data)
    if share is not None:
        share(response_files(bytes(waiting)))


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _NOT_PASSED)


def passed_headers(headers: Mapping[str, str], *, authorization: bool) -> CIMultiDict[str]:
    """The caller's headers that an application may see; it becomes part of the caller's trace."""
    unwanted = _FOR_CORE if authorization else (*_FOR_CORE, "authorization")
    found = _end_to_end(headers).items()
    return CIMultiDict((name, value) for name, value in found if not name.lower().startswith(unwanted))


def with_query(endpoint: str, query: str) -> str:
    """The endpoint with the caller's query string, byte for byte."""
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}" if query else endpoint


def is_absolute(url: str) -> bool:
    """Whether an attachment's URL is not a file of Core's: `data:` or `scheme://`."""
    return _ABSOLUTE.match(url) is not None


def request_files(document: dict[str, Any]) -> list[str]:
    """Canonical URLs of all files and folders (`metadata/files/{bucket}/{path}/`) that a request attaches.

    Raises: Refusal 400 for a relative URL that is not a well-formed one.
    """
    found: dict[str, None] = {}
    for url in _attached(document):
        with suppress(Refusal):
            file = parse(url.removeprefix("metadata/"))
            if file.kind == "files" and file.is_folder == url.startswith("metadata/"):
                found[file.url] = None
                continue
        raise Refusal(400)
    return list(found)


def _attached(document: Any) -> Iterator[str]:
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:  # no recursion: a caller decides how deep this is
        name, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(name, item) for item in reversed(value)]
        elif isinstance(value, dict) and name in _HOLDERS:
            url = value.get("url")
            if isinstance(url, str) and not is_absolute(url):
                yield url
        elif isinstance(value, dict):
            waiting += [(inner, item) for inner, item in value.items() if inner in _PATHS]


def response_files(block: bytes) -> list[str]:
    """Canonical URLs of the files that a response attaches: a JSON document, or whole events of a stream."""
    urls: list[str] = []
    for text in (block,) if block.lstrip().startswith(b"{") else block.split(b"\n"):
        if b'"attachments"' in text:
            with suppress(ValueError):
                for url in _attached(orjson.loads(text.removeprefix(b"data:"))):
                    with suppress(Refusal):
                        urls.append(parse(url).url)
    return urls
