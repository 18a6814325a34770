"""The SDK's cache of tool lists, reduced to what a call needs."""

from __future__ import annotations

from mcp.client.caching import CacheEntry, CacheKey, InMemoryResponseCacheStore
from mcp.shared.inbound import x_mcp_header_map
from mcp.types import ListToolsResult, Tool


class CallableTools(InMemoryResponseCacheStore):
    """Keeps the tools' names and which of their arguments are sent as headers.

    The SDK copies the cached list for every call and compiles its output schemas: twice the work of the call itself.
    """

    async def set(self, key: CacheKey, entry: CacheEntry) -> None:
        if isinstance(entry.value, ListToolsResult):
            named = entry.value.model_copy(update={"tools": [_callable(tool) for tool in entry.value.tools]})
            entry = CacheEntry(value=named, scope=entry.scope, expires_at=entry.expires_at)
        await super().set(key, entry)


def _callable(tool: Tool) -> Tool:
    needed = tool.input_schema if x_mcp_header_map(tool.input_schema) else {"type": "object"}
    return Tool(name=tool.name, input_schema=needed)
