"""What handlers read and answer: JSON, plain text without a content type as DIAL Core sends it, refusals."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web


class PlainResponse(web.Response):
    """Text, possibly empty, without a content type."""

    def __init__(self, status: int, text: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status=status, body=text.encode(), headers=headers)


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is refused; `body` is the plain text of the response, or its JSON error object."""

    status: int
    body: str | dict[str, Any] = ""
    headers: Mapping[str, str] | None = None

    def response(self) -> web.Response:
        if isinstance(self.body, str):
            return PlainResponse(self.status, self.body, self.headers)
        return json_response({"error": self.body}, self.status, self.headers)


def openai_error(message: str, code: str, type: str = "runtime_error") -> dict[str, Any]:
    """The body of a refusal in OpenAI's shape."""
    return {"message": message, "type": type, "code": code}


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json", headers=headers)


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises: Refusal 400."""
    with suppress(orjson.JSONDecodeError):
        if isinstance(document := orjson.loads(body), dict):
            return document
    raise Refusal(400)
