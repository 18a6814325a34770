"""Misbehaving ends of a connection: a server written by hand, and a cable that breaks when a test cuts it."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.core import served

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Results = dict[str, Any]
VERSION = "2026-07-28"


@asynccontextmanager
async def http_server(answer: Answer) -> AsyncGenerator[str]:
    """A server that gives this answer to every request; its MCP address."""
    app = web.Application(client_max_size=16 * 2**20)
    app.router.add_route("*", "/{path:.*}", answer)
    async with served(app, shutdown_timeout=0.2) as url:
        yield f"{url}/mcp"


async def hang(_: web.Request) -> web.Response:
    """An answer that does not come."""
    await asyncio.sleep(60)
    return web.Response()


@asynccontextmanager
async def raw_server(
    results: Results,
    requests: list[dict[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    older: bool = False,
) -> AsyncGenerator[str]:
    """A server of today's protocol that answers each method with `results[method]`, a result or a function (it may
    be async) of the request's parameters; `headers` come with each answer. `older`: of the former protocol only."""
    known: Results = {"server/discover": {"supportedVersions": [VERSION], "capabilities": {"tools": {}}}, **results}
    server = {"serverInfo": {"name": "older", "version": "1"}, "capabilities": {"tools": {}}}
    if older:
        known = {"initialize": {**server, "protocolVersion": "2025-06-18"}, **results}

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if requests is not None:
            requests.append({"headers": dict(request.headers), **asked})
        if older and asked["method"] not in known:
            return web.Response(status=202 if "id" not in asked else 400)
        result = known[asked["method"]]
        given: Any = result(asked.get("params") or {}) if callable(result) else result
        given = await given if inspect.isawaitable(given) else given
        cacheable = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        body = {"jsonrpc": "2.0", "id": asked["id"], "result": cacheable | given}
        return web.json_response(body, headers=headers)

    async with http_server(answer) as url:
        yield url


def listed(*names: str, **more: Any) -> dict[str, Any]:
    """The result of `tools/list` with tools of these names."""
    shape = {"description": "A tool.", "inputSchema": {"type": "object", "properties": {}}, **more}
    return {"tools": [{"name": name, **shape} for name in names]}


class Cable:
    """Carries bytes to a server; `cut_next` breaks that many calls of a tool, after the request has gone through."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut_next = 0
        self.url = ""

    async def carry(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far_in, far_out = await asyncio.open_connection("127.0.0.1", self._port)
        doomed = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forth(near_in, far_out, doomed))
                group.create_task(self._back(far_in, near_out, doomed))
        except* ConnectionError:
            pass  # one of the ends is gone
        finally:
            near_out.close()
            far_out.close()

    async def _forth(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        while data := await source.read(65_536):
            if self.cut_next and b'"tools/call"' in data:
                self.cut_next -= 1
                doomed.set()
            target.write(data)
            await target.drain()
        target.close()

    async def _back(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        while (data := await source.read(65_536)) and not doomed.is_set():
            target.write(data)
            await target.drain()
        target.close()


@asynccontextmanager
async def cable(port: int) -> AsyncGenerator[Cable]:
    """A cable to the server on that port of this machine."""
    carried = Cable(port)
    server = await asyncio.start_server(carried.carry, "127.0.0.1", 0)
    carried.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with server:
        yield carried
