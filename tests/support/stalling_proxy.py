"""A TCP proxy in front of a server, which can hold everything back in both directions: a network that is cut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class StallingProxy:
    """Forwards connections to a port of this machine. While `flowing` is not set, nothing arrives."""

    target: int
    port: int = 0
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with suppress(asyncio.CancelledError, OSError):
            await self.flowing.wait()
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                await asyncio.gather(self._copy(reader, inner_writer), self._copy(inner_reader, writer))
            finally:
                inner_writer.close()
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    def close(self) -> None:
        for task in self._serving:
            task.cancel()


@asynccontextmanager
async def stalling_proxy(target: int) -> AsyncGenerator[StallingProxy]:
    proxy = StallingProxy(target)
    proxy.flowing.set()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.close()
