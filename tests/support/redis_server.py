"""A real Redis on a free loopback port, in memory only, that can be stopped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.ports import free_port


@dataclass
class RedisServer:
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.close()
                await writer.wait_closed()
                return

    async def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            await asyncio.wait_for(self.process.wait(), 10)
            self.process = None


@asynccontextmanager
async def redis_server() -> AsyncGenerator[RedisServer]:
    server = RedisServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
