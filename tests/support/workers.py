"""The workers behind one port: how many are ready, their processes, and an address that leads to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp
import psutil

READY_SECONDS, TRIES = 60, 200


async def ready_workers(url: str, count: int) -> None:
    """Wait until so many are ready."""
    async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/ready") as response:
                    if (await response.json())["workers"]["ready"] == count:
                        return
            await asyncio.sleep(0.1)


def worker_pids(parent: int) -> list[int]:
    """The processes of the workers, by their numbers."""
    found: dict[str, int] = {}
    for child in psutil.Process(parent).children():
        with suppress(psutil.Error):
            command = child.cmdline()
            if "--worker" in command:
                found[command[command.index("--worker") + 1]] = child.pid
    return [found[place] for place in sorted(found)]


@asynccontextmanager
async def door_of(url: str, parent: int, number: int) -> AsyncGenerator[str]:
    """An address whose connections all lead to the worker of that number, of those that share the port of `url`."""
    port = int(url.rpartition(":")[2])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            inner_reader, inner_writer = await _connected(port, parent, number)
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _connected(port: int, parent: int, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(TRIES):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        pids = worker_pids(parent)
        if await _holder(pids, writer.get_extra_info("sockname")[1]) == pids[number]:
            return reader, writer
        writer.close()
    raise AssertionError(f"no connection led to worker {number}")


async def _holder(pids: Sequence[int], client: int) -> int:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            for pid in pids:
                with suppress(psutil.Error):
                    connections = psutil.Process(pid).net_connections("tcp")
                    if any(connection.raddr and connection.raddr.port == client for connection in connections):
                        return pid
            await asyncio.sleep(0.02)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
