"""Deployments that the agent calls by name: their completions and configurations, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.core_peers import DONE, Peer, Seen, chunk, peer

ALLOW: dict[str, Any] = {"rules": [{"action": "allow", "tool": "*", "trusted": True}]}
Answer = Sequence[Mapping[str, Any]] | Callable[[Seen], Sequence[Mapping[str, Any]]]


@asynccontextmanager
async def callee(
    answer: Answer = (), configuration: Mapping[str, Any] | None = None, hang: asyncio.Event | None = None
) -> AsyncGenerator[Peer]:
    """A deployment that streams these deltas; with `hang` it sets it behind them and stays connected for ever."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(configuration or {})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta in answer(running.last) if callable(answer) else answer:
            await response.write(chunk(delta))
        if hang is not None:
            hang.set()
            await asyncio.Event().wait()
        await response.write(chunk({}, "stop") + DONE)
        return response

    async with peer(handle) as running:
        yield running


def entry(running: Peer, **more: Any) -> dict[str, Any]:
    """Its entry in Core's configuration, with a configuration of its own."""
    features = {"configurationEndpoint": f"{running.url}/configuration", **more.pop("features", {})}
    return {"endpoint": f"{running.url}/chat/completions", "features": features, **more}


def stage(index: Any, **fields: Any) -> dict[str, Any]:
    """A piece of an answer: one stage, or more of it."""
    return {"custom_content": {"stages": [{"index": index, **fields}]}}
