"""The real agent on a loopback port: in the test's own process, or as `dial-agent serve` in a process of its own."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from task.server import create_app
from task.settings import Settings
from tests.support.asgi import served_asgi
from tests.support.ports import listens
from tests.support.up import environment


@asynccontextmanager
async def running_agent(settings: Settings, *, port: int | None = None) -> AsyncGenerator[str]:
    """Its base URL, ready to answer; ends with the block."""
    kept = settings.keep_alive_seconds
    async with served_asgi(create_app(settings), port=port or 0, http="httptools", timeout_keep_alive=kept) as url:
        yield url


@asynccontextmanager
async def agent_process(
    home: Path, port: int, variables: Mapping[str, str], under: Sequence[str] = ()
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The agent with a home of its own, once its port is open; it ends with the block at the latest. `under` is a
    module that runs it, with its options."""
    home.mkdir()
    environ = environment(home, AGENT_PORT=str(port), **variables)
    started = [sys.executable, "-m", *under, "task", "serve"]
    process = await asyncio.create_subprocess_exec(*started, cwd=home, env=environ)
    try:
        async with asyncio.timeout(30):
            while not await listens(port):
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 20)
