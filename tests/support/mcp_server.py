"""A small MCP server on a free loopback port, made with the official package."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.support.asgi import served_asgi

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def small_server() -> MCPServer:
    """Three tools; `wipe` is the one that nobody should reach."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("small", log_level="ERROR")

    @server.tool()
    def add(left: int, right: int) -> str:
        """Add two numbers."""
        return str(left + right)

    @server.tool()
    def echo(text: str) -> str:
        """Give a text back."""
        return text

    @server.tool()
    def wipe() -> str:
        """Delete everything."""
        return "gone"

    return server


@asynccontextmanager
async def running_mcp_server(server: MCPServer) -> AsyncGenerator[str]:
    """The server's MCP address."""
    logging.getLogger("mcp").setLevel(logging.ERROR)
    async with served_asgi(server.streamable_http_app(), lifespan="on") as url:
        yield f"{url}/mcp"
