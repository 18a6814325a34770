"""A real Redis on a free loopback port, in memory only, that can be stopped and started again."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from signal import SIGCONT, SIGSTOP

from tests.support.ports import free_port, listens


@dataclass
class RedisServer:
    """`options` are those of redis-server's command line; with TLS the port speaks nothing else."""

    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        ports = ("--port", "0", "--tls-port") if "--tls-cert-file" in self.options else ("--port",)
        self.process = await asyncio.create_subprocess_exec(
            "redis-server", *ports, str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            *self.options, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(20):
            while not await listens(self.port):
                await asyncio.sleep(0.01)

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Its connections stay open, and nothing comes out of them."""
        assert self.process is not None
        self.process.send_signal(SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(SIGCONT)

    async def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            await asyncio.wait_for(self.process.wait(), 10)
            self.process = None


@asynccontextmanager
async def redis_server(*options: str) -> AsyncGenerator[RedisServer]:
    server = RedisServer(options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
