"""What one process opens and closes once, for every request of every door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module

import aiohttp

from task.closing import close_all
from task.core_client.files import DialFiles
from task.llm.dial import ModelListings
from task.shared.redis_store import REPLICAS, RedisStore
from task.store.access import StoreAccess
from task.telemetry.operations import Telemetry
from task.tools.mcp.hub import MCPHub


@dataclass(frozen=True, slots=True)
class Services:
    """Connections, caches and the store of one process; `task.product.opened` makes them.

    `endpoint` is the address of DIAL Core, `core_key` the agent's own key there, or empty. `closes` end what was opened
    besides these, in their order.
    """

    endpoint: str
    session: aiohttp.ClientSession
    files: DialFiles
    listings: ModelListings
    store: StoreAccess
    mcp: MCPHub
    telemetry: Telemetry
    redis: RedisStore | None = None
    core_key: str = ""
    closes: tuple[Callable[[], Awaitable[object]], ...] = ()

    async def warm_up(self) -> None:
        """Load in a thread what the first requests would otherwise wait for."""
        await self.files.open()
        await asyncio.to_thread(import_module, "jsonschema")
        await self.store.get_if_available()
        if self.redis is not None:
            await self.redis.hold(REPLICAS, self.redis.own_id)

    async def close(self) -> None:
        """Close what was opened."""
        redis = [self.redis.close] if self.redis is not None else []
        await close_all(
            *self.closes, self.session.close, self.files.close, self.telemetry.close, self.store.close, *redis
        )
