"""`/v1/toolset/{id}/mcp`: MCP servers behind Core, with only the tools that the configuration allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from task.local_core.admin import ADMIN_ROLE
from task.local_core.config import CoreConfig, Toolset, may_use
from task.local_core.identity import IDENTITY, Identity
from task.local_core.keys import Keys
from task.local_core.refusal import Refusal
from task.local_core.relay import Answering, Relay, Target, passed_headers, read_body, with_query
from task.local_core.tools_filter import ToolsFilter

ROUTE = "/v1/toolset/{id:.+}/mcp"
UNRESTRICTED = "useAllowedTools"


@dataclass(frozen=True, slots=True)
class Toolsets:
    """The MCP routes of toolsets; what passes is left as it is but for tools that are not allowed."""

    config: Callable[[], CoreConfig]
    keys: Keys
    relay: Relay

    def register(self, app: web.Application) -> None:
        for method in ("GET", "POST", "DELETE"):
            app.router.add_route(method, ROUTE, self.pass_on)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        identity = request[IDENTITY]
        toolset = self._usable(request.match_info["id"], identity)
        allowed = _allowed(request, toolset, identity)
        body = await read_body(request)
        messages = _messages(body) if request.method == "POST" else []
        if allowed is not None and any(_calls_another(message, allowed) for message in messages):
            raise Refusal(403, "Tool is not allowed")
        # A GET's stream may bring the answer to a list that was asked for before.
        lists = request.method == "GET" or any(message.get("method") == "tools/list" for message in messages)
        filtered = allowed if lists else None
        return await self._sent(request, toolset, body, filtered)

    async def _sent(
        self, request: web.Request, toolset: Toolset, body: bytes, filtered: frozenset[str] | None
    ) -> web.StreamResponse:
        headers = passed_headers(request.headers, authorization=toolset.forward_auth_token)
        address = with_query(toolset.endpoint or "", _query(request))
        answering = Answering(rewrite=lambda headers: None if filtered is None else ToolsFilter(filtered, headers))
        if not toolset.forward_per_request_key:
            return await self.relay.send(request, [Target(toolset.name, address, headers)], body, answering)
        key = self.keys.mint(request[IDENTITY], toolset.name, request.headers)
        headers["API-KEY"] = key.value
        try:
            return await self.relay.send(request, [Target(toolset.name, address, headers)], body, answering)
        finally:
            self.keys.end(key)

    def _usable(self, name: str, identity: Identity) -> Toolset:
        toolset = self.config().toolsets.get(name)
        if toolset is None:
            raise Refusal(404, f"Unknown toolset: {name}")
        if not may_use(identity.roles, toolset.user_roles):
            raise Refusal(403, f"Forbidden toolset: {name}")
        if not toolset.endpoint:
            raise Refusal(503)
        return toolset


def _allowed(request: web.Request, toolset: Toolset, identity: Identity) -> frozenset[str] | None:
    """The tools that may be listed and called; None: all of them, as where the configuration names none."""
    if request.query.get(UNRESTRICTED, "").lower() == "false":
        if identity.key is not None or ADMIN_ROLE not in identity.roles:
            raise Refusal(403, "Only an administrator may use all tools")
        return None
    return frozenset(toolset.allowed_tools) or None


def _query(request: web.Request) -> str:
    parts = request.rel_url.raw_query_string.split("&")
    return "&".join(part for part in parts if part.partition("=")[0] != UNRESTRICTED)


def _messages(body: bytes) -> list[Mapping[str, Any]]:
    """The JSON-RPC messages of a body: one, or the list that older revisions of MCP allow."""
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
