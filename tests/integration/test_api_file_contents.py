"""`/v1/files/{id}/content`: a file of any size is passed on as it arrives."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path

import pytest
from aiohttp import ClientPayloadError, ClientSession, ClientTimeout, web

from task.core_client.files import file_id_of
from tests.support.agent import agent_process
from tests.support.core import API_KEY, local_core, served
from tests.support.core_peers import Handler
from tests.support.http_api import Api, http_api
from tests.support.ports import free_port

LARGE = 96 * 2**20
PLACE = "files/bucket/http/local/large.bin"


@asynccontextmanager
async def core_with_a_file(content: bytes, tmp_path: Path) -> AsyncGenerator[tuple[str, str]]:
    """A Core's address, and the id of a file in the folder of the agent's callers."""
    async with local_core({}, tmp_path) as core, ClientSession(headers={"Api-Key": API_KEY}) as session:
        async with session.get(f"{core.url}/v1/bucket") as response:
            place = f"files/{(await response.json())['bucket']}/http/local/large.bin"
        async with session.put(f"{core.url}/v1/{place}", data={"file": BytesIO(content)}) as response:
            assert response.status == 200, await response.text()
        yield core.url, file_id_of(place)


def peak_memory(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.fault("http api: a file too large to hold in memory")
@pytest.mark.system
async def test_a_large_file_takes_little_memory_on_its_way(tmp_path: Path) -> None:
    port = free_port()
    async with core_with_a_file(bytes(LARGE), tmp_path) as (core, file_id):
        variables = {"DIAL_ENDPOINT": core, "DIAL_API_KEY": API_KEY, "AGENT_DATA_DIR": str(tmp_path / "data")}
        async with (
            agent_process(tmp_path / "home", port, variables) as process,
            ClientSession(f"http://127.0.0.1:{port}", timeout=ClientTimeout(60)) as session,
        ):
            async with session.get(f"/v1/files/{file_id}") as known:
                assert (await known.json())["bytes"] == LARGE
            before = peak_memory(process.pid)
            async with session.get(f"/v1/files/{file_id}/content", headers={"Range": "bytes=0-9"}) as response:
                size = sum([len(part) async for part in response.content.iter_any()])
            grown = peak_memory(process.pid) - before
    assert (response.status, response.content_length, size) == (200, LARGE, LARGE)
    assert grown < LARGE / 4


@asynccontextmanager
async def reading_from(content: Handler, tmp_path: Path) -> AsyncGenerator[tuple[Api, str]]:
    """The API before a Core that answers with this content, and the path to it."""

    async def known(_: web.Request) -> web.Response:
        return web.json_response({"url": PLACE, "nodeType": "ITEM"})

    app = web.Application()
    app.router.add_get(f"/v1/metadata/{PLACE}", known)
    app.router.add_get(f"/v1/{PLACE}", content)
    async with served(app) as core, http_api(tmp_path=tmp_path, dial_endpoint=core, dial_api_key=API_KEY) as api:
        yield api, f"/v1/files/{file_id_of(PLACE)}/content"


@pytest.mark.fault("http api: a file that Core cuts off in the middle")
async def test_a_file_that_is_cut_off_is_never_a_shorter_file(tmp_path: Path) -> None:
    async def cut_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async with reading_from(cut_off, tmp_path) as (api, path):
        with pytest.raises(ClientPayloadError):
            await api.get(path)


@pytest.mark.fault("http api: a caller who leaves in the middle of a file")
async def test_a_caller_who_leaves_ends_the_transfer_from_core(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(2**16))
        finally:
            ended.set()

    async with reading_from(endless, tmp_path) as (api, path):
        async with api.session.get(f"{api.url}{path}") as response:
            assert await response.content.readexactly(10) == bytes(10)
        async with asyncio.timeout(20):
            await ended.wait()
