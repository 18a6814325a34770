"""A small HTTP API with its OpenAPI document: a library whose books are kept in memory, and answers that misbehave."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.core import served

_PROPERTIES = {
    "id": {"type": "integer", "readOnly": True},
    "title": {"type": "string"},
    "of": {"$ref": "#/components/schemas/Book"},
}
_BOOK = {"type": "object", "required": ["id", "title"], "properties": _PROPERTIES}
_ID: dict[str, Any] = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_BODY = {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Book"}}}}
BEARER = {"type": "http", "scheme": "bearer"}


def document(**changes: Any) -> dict[str, Any]:
    """The library's document; `changes` replace its parts."""
    tags, shelf = {"type": "array", "items": {"type": "string"}}, {"type": "string", "description": "Which shelf."}
    find = [{"name": "tag", "in": "query", "schema": tags}, {"name": "X-Shelf", "in": "header", "schema": shelf}]
    return {
        "openapi": "3.0.3",
        "info": {"title": "Library", "version": "1"},
        "servers": [{"url": "/v1"}],
        "components": {"schemas": {"Book": _BOOK}, "securitySchemes": {"key": BEARER}},
        "paths": {
            "/books": {
                "get": {"operationId": "findBooks", "tags": ["books"], "summary": "Find books.", "parameters": find,
                        "responses": {"200": {"description": "Books"}}},
                "post": {"operationId": "addBook", "tags": ["books"], "requestBody": _BODY, "responses": {}},
            },
            "/books/{id}": {
                "parameters": [_ID],
                "get": {"operationId": "readBook", "responses": {}},
                "delete": {"operationId": "removeBook", "tags": ["admin"], "responses": {}},
            },
        },
        **changes,
    }  # fmt: skip


@dataclass
class Library:
    """What was asked of the server at `url`; `described` is its document, `answers` are those of books."""

    url: str = ""
    described: dict[str, Any] = field(default_factory=document)
    requests: list[tuple[str, str, dict[str, str], str]] = field(
        default_factory=list[tuple[str, str, dict[str, str], str]]
    )
    answers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/openapi.json":
            return web.json_response(self.described)
        body = await request.text()
        self.requests.append((request.method, request.raw_path, dict(request.headers), body))
        asked = request.path.rpartition("/")[2]
        if asked == "echo":
            return web.json_response(dict(request.headers))
        usual = {"text": json.dumps({"method": request.method, "book": asked}), "content_type": "application/json"}
        return web.Response(**self.answers.get(f"{request.method} {asked}", self.answers.get(asked, usual)))


@asynccontextmanager
async def library(**changes: Any) -> AsyncGenerator[Library]:
    """The server, on the loopback."""
    peer, app = Library(described=document(**changes)), web.Application()
    app.router.add_route("*", "/{path:.*}", peer.answer)
    async with served(app, shutdown_timeout=0.2) as peer.url:
        yield peer
