"""The real agent under the real web server, on a free loopback port of the test's own process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from task.server import create_app
from task.settings import Settings
from tests.support.asgi import served_asgi


@asynccontextmanager
async def running_agent(settings: Settings, *, port: int | None = None) -> AsyncGenerator[str]:
    """Its base URL, ready to answer; ends with the block."""
    async with served_asgi(create_app(settings), port=port or 0, http="httptools") as url:
        yield url
