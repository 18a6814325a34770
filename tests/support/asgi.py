"""An ASGI application under the real web server, on a loopback port of the test's own process."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


class PromptServer(uvicorn.Server):
    """Ends as soon as it is asked to; uvicorn's own server looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready, self.ending = asyncio.Event(), asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.ready.set()
        await self.ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for server in self.servers:
            server.close()
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.sleep(0.002)
        if state.connections or state.tasks:
            return await super().shutdown(sockets)
        return await self.lifespan.shutdown()


@asynccontextmanager
async def served_asgi(app: Any, *, port: int = 0, **options: Any) -> AsyncGenerator[str]:
    """Its base URL, ready to answer; `options` are uvicorn's. Ends with the block, as it would on a signal."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        server = PromptServer(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, **options))
        serving = asyncio.create_task(server.serve([listener]))
        ready = asyncio.create_task(server.ready.wait())
        try:
            async with asyncio.timeout(20):
                await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving  # raises why it has not started
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ready.cancel()
            server.ending.set()
            async with asyncio.timeout(20):
                await serving
