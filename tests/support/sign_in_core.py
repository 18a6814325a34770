"""A Core whose toolsets want a sign-in, and the chat at the other end of the client's channel; as Core 0.48 has it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.core import served
from tests.support.mcp_wire import VERSION, listed

CHANNEL = "channel-1"
Dialog = Callable[[list[dict[str, Any]]], Awaitable[list[dict[str, Any]] | bytes | None]]


@dataclass
class SignInCore:
    """Toolset `t` has the tool `use_t`; without a sign-in each answers 401. `service` is one that its tools need.

    `dialog` is what the chat makes of a batch: its results, bytes to send in their place, or None for a closed channel.
    """

    dialog: Dialog
    signed_in: set[str] = field(default_factory=set[str])
    service: str = ""
    url: str = ""
    batches: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    calls: list[str] = field(default_factory=list[str])
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def targets(self) -> list[list[str]]:
        """What each dialog was about."""
        return [[next(iter(entry["params"].values())) for entry in batch] for batch in self.batches]

    async def toolset(self, request: web.Request) -> web.Response:
        name, asked = request.match_info["name"], await request.json()
        if name not in self.signed_in:
            return web.json_response({"error": "no credentials"}, status=401)
        if asked["method"] == "tools/call":
            self.calls.append(name)
        open_tool = listed(f"use_{name}", annotations={"readOnlyHint": True})
        locked = self.service and self.service not in self.signed_in
        challenge = [{"method": "external-service/signin", "scope": self.service}]
        refusal = {"content": [], "isError": True, "_meta": {"dial.epam.com/auth-challenge": challenge}}
        results: dict[str, Any] = {
            "server/discover": {"supportedVersions": [VERSION], "capabilities": {"tools": {}}},
            "tools/list": open_tool,
            "tools/call": refusal if locked else {"content": [{"type": "text", "text": f"{name} used"}]},
        }
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **results[asked["method"]]}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    async def interact(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("X-DIAL-CLIENT-CHANNEL-ID") != CHANNEL or "Api-Key" not in request.headers:
            return web.Response(status=404)
        batch = await request.json()
        self.batches.append(batch)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": heartbeat\n\n")
        self.opened.set()
        try:
            answer = await self.dialog(batch)
            if answer is not None:
                sent = answer if isinstance(answer, bytes) else b"data: " + json.dumps(answer).encode() + b"\n\n"
                await response.write(b": heartbeat\n\n" + sent)
        except asyncio.CancelledError:
            self.left.set()
            raise
        return response


@asynccontextmanager
async def sign_in_core(dialog: Dialog | None = None) -> AsyncGenerator[SignInCore]:
    """The Core, at `url`; without a `dialog` the user signs in to everything."""

    async def signs_in(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        core.signed_in.update(next(iter(entry["params"].values())) for entry in batch)
        return [{"jsonrpc": "2.0", "id": entry["id"], "result": "success"} for entry in reversed(batch)]

    core = SignInCore(dialog or signs_in)
    app = web.Application()
    app.router.add_route("*", "/v1/toolset/{name}/mcp", core.toolset)
    app.router.add_post("/v1/ops/client-channel/interact", core.interact)
    async with served(app, shutdown_timeout=0.2) as url:
        core.url = url
        yield core


def saying(result: str) -> Dialog:
    """A user who answers every question of a dialog like that."""

    async def dialog(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"jsonrpc": "2.0", "id": entry["id"], "result": result} for entry in batch]

    return dialog
