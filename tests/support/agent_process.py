"""The agent alone as an operator starts it: `dial-agent serve`, a process of its own on a given port."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.up import environment


@asynccontextmanager
async def agent_process(
    home: Path, port: int, variables: Mapping[str, str]
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The agent with a home of its own, once its port is open; it ends with the block at the latest."""
    home.mkdir()
    environ = environment(home, AGENT_PORT=str(port), **variables)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "task", "serve", cwd=home, env=environ)
    try:
        async with asyncio.timeout(30):
            while not await _listens(port):
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 20)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
