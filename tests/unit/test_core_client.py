"""What commands get from DIAL Core is whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from task.commands.core_client import CoreClient, Unreachable
from tests.support.core import served


async def test_an_incomplete_download_leaves_no_file(tmp_path: Path) -> None:
    target, breaks_off = tmp_path / "report.csv", asyncio.Event()

    async def half(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "8"})
        await answer.prepare(request)
        await answer.write(b"half")
        await breaks_off.wait()
        assert request.transport is not None
        request.transport.close()
        return answer

    app = web.Application()
    app.router.add_get("/v1/files/b/report.csv", half)
    async with served(app) as url, aiohttp.ClientSession() as session, asyncio.timeout(10):
        client = CoreClient(session, url, "key")
        given_up = asyncio.create_task(client.download("files/b/report.csv", target))
        while not target.exists():
            await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.wait({given_up})
        assert not target.exists()
        breaks_off.set()
        with pytest.raises(Unreachable):
            await client.download("files/b/report.csv", target)
        assert not target.exists()
