"""Answers that end a request early: plain text without a content type, as DIAL Core sends them, or JSON errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web


class PlainAnswer(web.Response):
    """Text, possibly empty, that carries no content type."""

    def __init__(self, status: int, text: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status=status, body=text.encode(), headers=headers)


class Refusal(Exception):
    """A request that is turned down; `body` is the plain text of the answer, or its JSON error object."""

    def __init__(
        self, status: int, body: str | dict[str, Any] = "", *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body
        self.headers = dict(headers or {})

    def answer(self, *, typed: bool = True) -> web.Response:
        """The answer; `typed` says whether a JSON body names its content type (Core 0.25 does not)."""
        if isinstance(self.body, str):
            return PlainAnswer(self.status, self.body, self.headers)
        text = orjson.dumps({"error": self.body}).decode()
        if not typed:
            return PlainAnswer(self.status, text, self.headers)
        return web.Response(status=self.status, text=text, content_type="application/json", headers=self.headers)


def json_answer(request: web.Request, document: Any) -> web.Response:
    """A JSON answer, gzipped when the client asks for it and it is worth the work."""
    body = orjson.dumps(document)
    answer = web.Response(body=body, content_type="application/json")
    if len(body) > 1024 and "gzip" in request.headers.get("Accept-Encoding", "").lower():
        answer.enable_compression(web.ContentCoding.gzip)
    return answer
