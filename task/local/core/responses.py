"""What handlers read and answer: bodies, plain text without a content type as DIAL Core sends it, JSON, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import web


class PlainResponse(web.Response):
    """Text, possibly empty, without a content type."""

    def __init__(self, status: int, text: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status=status, body=text.encode(), headers=headers)


class Refusal(Exception):
    """A request that is refused; `body` is the plain text of the response, or its JSON error object."""

    def __init__(
        self, status: int, body: str | dict[str, Any] = "", *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body
        self.headers = dict(headers or {})

    def response(self, *, typed: bool = True) -> web.Response:
        """The response; `typed` says whether a JSON body names its content type (Core 0.25 does not)."""
        text = self.body if isinstance(self.body, str) else orjson.dumps({"error": self.body}).decode()
        if isinstance(self.body, str) or not typed:
            return PlainResponse(self.status, text, self.headers)
        return web.Response(status=self.status, text=text, content_type="application/json", headers=self.headers)


def json_response(document: Any) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json")


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises: Refusal 422 when it does not arrive."""
    try:
        return await request.read()
    except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError, web.RequestPayloadError):
        raise Refusal(422, "Failed to receive body") from None


def json_object(body: bytes, otherwise: str = "") -> dict[str, Any]:
    """The JSON object in a body. Raises: Refusal 400 with the text `otherwise`."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise Refusal(400, otherwise)
    return document
