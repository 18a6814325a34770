"""The real agent under the real web server, on a free loopback port of the test's own process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn

from task.server import create_app
from task.settings import Settings


@asynccontextmanager
async def running_agent(settings: Settings, *, port: int | None = None) -> AsyncGenerator[str]:
    """Its base URL, ready to answer; ends with the block."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port or 0))
        config = uvicorn.Config(create_app(settings), http="httptools", log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(10):
                while not server.started:
                    await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(serving, 10)
