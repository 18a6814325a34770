"""`/v1/toolset/{id}/mcp`: MCP servers behind Core, with only the tools that the configuration allows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

import aiohttp
import orjson
from aiohttp import web

from task.local.core.callers import IDENTITY
from task.local.core.config import Toolset
from task.local.core.core import CORE, usable
from task.local.core.relay import ResponseHooks, Target, passed_headers, read_body, with_query
from task.local.core.responses import Refusal

ROUTE = "/v1/toolset/{id:.+}/mcp"
UNRESTRICTED = "useAllowedTools"
MAX_BYTES = 16 * 2**20
_EVENT_END = re.compile(rb"\r?\n\r?\n")


def toolset_routes() -> list[web.RouteDef]:
    return [web.route(method, ROUTE, _pass_on) for method in ("GET", "POST", "DELETE")]


async def _pass_on(request: web.Request) -> web.StreamResponse:
    name = request.match_info["id"]
    found = request.app[CORE].config.toolsets.get(name)
    toolset = usable(request, found, f"Unknown toolset: {name}", f"Forbidden toolset: {name}")
    if not toolset.endpoint:
        raise Refusal(503)
    allowed = _allowed(request, toolset)
    body = await read_body(request)
    messages = _messages(body) if request.method == "POST" else []
    if allowed is not None and any(_calls_another(message, allowed) for message in messages):
        raise Refusal(403, "Tool is not allowed")
    # A GET's stream may bring the result of a list that was requested before.
    lists = request.method == "GET" or any(message.get("method") == "tools/list" for message in messages)
    return await _send(request, toolset, body, allowed if lists else None)


async def _send(
    request: web.Request, toolset: Toolset, body: bytes, filtered: frozenset[str] | None
) -> web.StreamResponse:
    core, headers = request.app[CORE], passed_headers(request.headers, authorization=toolset.forward_auth_token)
    targets = [Target(with_query(toolset.endpoint or "", _query(request)), headers)]
    hooks = ResponseHooks(rewrite=lambda headers: None if filtered is None else ToolsFilter(filtered, headers))
    if not toolset.forward_per_request_key:
        return await core.relay.send(request, targets, body, hooks)
    with core.keys.created(request, toolset.name) as key:
        headers["API-KEY"] = key.value
        return await core.relay.send(request, targets, body, hooks)


def _allowed(request: web.Request, toolset: Toolset) -> frozenset[str] | None:
    # The tools that may be listed and called; None: all of them, also where the configuration names none
    if request.query.get(UNRESTRICTED, "").lower() == "false":
        request[IDENTITY].check_admin("Only an administrator may use all tools")
        return None
    return frozenset(toolset.allowed_tools) or None


def _query(request: web.Request) -> str:
    parts = request.rel_url.raw_query_string.split("&")
    return "&".join(part for part in parts if part.partition("=")[0] != UNRESTRICTED)


def _messages(body: bytes) -> list[Mapping[str, Any]]:
    try:
        content: Any = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise Refusal(400, "Invalid JSON request body") from None
    messages = cast("list[Any]", content if isinstance(content, list) else [content])
    if not all(isinstance(message, dict) for message in messages):
        raise Refusal(400, "Invalid JSON request body")
    return messages


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        # Parsers differ in which of two equal names they take: the server might see another call than Core did.
        raise ValueError("a name stands twice in one object")
    return fields


def _calls_another(message: Mapping[str, Any], allowed: frozenset[str]) -> bool:
    if message.get("method") != "tools/call":
        return False
    params = message.get("params")
    return not isinstance(params, dict) or cast("dict[str, Any]", params).get("name") not in allowed


class UnreadableTools(aiohttp.ClientError):
    """A response whose tools cannot be read; it must not pass."""


class ToolsFilter:
    """Filters `result.tools` of JSON-RPC responses, as one JSON body or as events; all else passes byte by byte.

    A JSON body is written in `finish`, an event as soon as it is complete.

    Raises:
        UnreadableTools: by every method; the response is encoded, too large or not JSON.
    """

    def __init__(self, allowed: frozenset[str], headers: Mapping[str, str]) -> None:
        kind = headers.get("Content-Type", "")
        self._allowed = allowed
        self._events = "text/event-stream" in kind
        self._json = "application/json" in kind
        self._encoded = headers.get("Content-Encoding", "identity") != "identity"
        self._rest = bytearray()
        self._searched = 0  # how far the end of an event has been looked for

    def feed(self, data: bytes) -> bytes:
        if not self._events and not self._json:
            return data
        if self._encoded:
            raise UnreadableTools("the response is encoded")
        self._rest += data
        if len(self._rest) > MAX_BYTES:
            raise UnreadableTools("the response is too large")
        return self._complete_events() if self._events else b""

    def finish(self) -> bytes:
        rest, self._rest = bytes(self._rest), bytearray()
        if not rest.strip():
            return rest
        return self._event(rest) if self._events else self._filtered(rest) or rest

    def _complete_events(self) -> bytes:
        passed: list[bytes] = []
        start = 0
        for end in [found.end() for found in _EVENT_END.finditer(self._rest, self._searched)]:
            passed.append(self._event(bytes(self._rest[start:end])))
            start = end
        del self._rest[:start]
        self._searched = max(0, len(self._rest) - 3)
        return b"".join(passed)

    def _event(self, block: bytes) -> bytes:
        lines = block.splitlines()
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        changed = self._filtered(data) if data.strip() else None
        if changed is None:
            return block
        others = [line for line in lines if line and not line.startswith(b"data:")]
        return b"\n".join([*others, b"data: " + changed, b"", b""])

    def _filtered(self, text: bytes) -> bytes | None:
        try:
            content: Any = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise UnreadableTools("the response is not JSON") from None
        messages = cast("list[Any]", content if isinstance(content, list) else [content])
        changed = [self._drop(message) for message in messages]
        return orjson.dumps(content) if any(changed) else None

    def _drop(self, message: Any) -> bool:
        result: Any = message.get("result") if isinstance(message, dict) else None
        tools: Any = result.get("tools") if isinstance(result, dict) else None
        if not isinstance(tools, list):
            return False
        result["tools"] = [tool for tool in tools if isinstance(tool, dict) and tool.get("name") in self._allowed]
        return len(result["tools"]) < len(tools)
