"""Lists of tools that one replica has asked a server for, and the others take from Redis."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256

from task.shared.redis_store import RedisStore
from task.tools.mcp.connection import Identity
from task.tools.mcp.mcp_tool_model import MCPToolModel, usable

logger = logging.getLogger(__name__)

Listing = tuple[list[MCPToolModel], float]  # with its age in seconds


class SharedListings:
    """The lists of one server, as `settings` describe it, kept for so many seconds.

    A list that was asked for with a person's own key is found with the key of the same person only.
    """

    def __init__(self, redis: RedisStore, settings: Iterable[object], seconds: float) -> None:
        self._redis, self._seconds = redis, seconds
        self._settings = json.dumps([str(item) for item in settings])

    async def get(self, identity: Identity) -> Listing | None:
        """What some replica has been listed within the time that a list is fresh."""
        found = await self._redis.listing(self._key(identity), self._seconds)
        if found is None:
            return None
        content, age = found
        try:
            tools = [usable(MCPToolModel(**tool)) for tool in json.loads(content)]
        except (ValueError, TypeError, AttributeError):
            logger.warning("a stored list of tools is damaged and was not used")
            return None
        return [tool for tool in tools if tool is not None], age

    async def put(self, identity: Identity, tools: Iterable[MCPToolModel]) -> None:
        content = json.dumps([asdict(tool) for tool in tools]).encode()
        await self._redis.put_listing(self._key(identity), content, self._seconds)

    def _key(self, identity: Identity) -> str:
        whose = [self._settings, identity.own, identity.partition]
        return sha256(json.dumps(whose).encode("utf-8", "replace")).hexdigest()
