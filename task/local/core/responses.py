"""Responses that end a request early: plain text without a content type, as DIAL Core sends it, or JSON errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def json_response(request: web.Request, document: Any) -> web.Response:
    """A JSON response, compressed with gzip when the client accepts that and it is worth the work."""
    body = orjson.dumps(document)
    response = web.Response(body=body, content_type="application/json")
    if len(body) > 1024 and "gzip" in request.headers.get("Accept-Encoding", "").lower():
        response.enable_compression(web.ContentCoding.gzip)
    return response
