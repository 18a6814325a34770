"""A small MCP server on a free loopback port, made with the official package."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn

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
async def running_mcp_server(server: MCPServer, *, json_response: bool = False) -> AsyncGenerator[str]:
    """The server's MCP address; answers come as events, or as JSON where told."""
    logging.getLogger("mcp").setLevel(logging.ERROR)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = server.streamable_http_app(json_response=json_response)
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, lifespan="on")
        running = uvicorn.Server(config)
        serving = asyncio.create_task(running.serve([listener]))
        try:
            async with asyncio.timeout(10):
                while not running.started:
                    await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            running.should_exit = True
            await asyncio.wait_for(serving, 10)
