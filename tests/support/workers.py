"""The workers behind one port: how many are ready, their processes, and an address that leads to one of them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import aiohttp
import psutil

READY_SECONDS, TRIES, HOLDER_TRIES = 60, 200, 40


async def ready_workers(url: str, count: int) -> None:
    """Wait until so many are ready."""
    async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/ready") as response:
                    if (await response.json())["workers"]["ready"] == count:
                        return
            await asyncio.sleep(0.1)


def worker_pids(parent: int) -> dict[int, int]:
    """The processes of the workers that are alive, by their numbers."""
    found: dict[int, int] = {}
    for child in psutil.Process(parent).children():
        with suppress(psutil.Error):
            command = child.cmdline()
            if "--worker" in command:
                found[int(command[command.index("--worker") + 1].partition(",")[0])] = child.pid
    return found


@asynccontextmanager
async def door_of(url: str, parent: int, number: int) -> AsyncGenerator[str]:
    """An address whose connections all lead to the worker of that number, of those that share the port of `url`."""
    port, serving = int(url.rpartition(":")[2]), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with suppress(asyncio.CancelledError):  # of our own making; the server would log it
            await lead(reader, writer)

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with _closing(writer):
            inner_reader, inner_writer = await _connected(port, parent, number)
            async with _closing(inner_writer), asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, inner_writer))
                group.create_task(_copy(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _connected(port: int, parent: int, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(TRIES):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if await _holder(parent, writer.get_extra_info("sockname")[1]) == number:
            return reader, writer
        async with _closing(writer):
            pass
    raise AssertionError(f"no connection led to worker {number}")


async def _holder(parent: int, client: int) -> int | None:
    # One that nobody takes was lost with its worker.
    for _ in range(HOLDER_TRIES):
        for number, pid in worker_pids(parent).items():
            with suppress(psutil.Error):
                connections = psutil.Process(pid).net_connections("tcp")
                if any(connection.raddr and connection.raddr.port == client for connection in connections):
                    return number
        await asyncio.sleep(0.05)
    return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
