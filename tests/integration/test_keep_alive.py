"""Idle connections: servers keep them longer than their callers do, and clients let go before their servers."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from task.core_client.files import DialFiles
from task.llm.transport import RETRIES, answer_bytes, new_session
from task.tools.mcp.mcp_client import MCPClient
from task.tools.py_interpreter.interpreter_server import InterpreterServer, Way
from tests.support.asgi import served_asgi
from tests.support.chat_reader import chat_reader
from tests.support.core import local_core
from tests.support.mcp_server import small_server
from tests.support.up import running_product

Call = Callable[[], Awaitable[object]]
SETTING = 7
SILENCE = 5.5  # longer than the 5 seconds after which uvicorn closes a connection unless it is configured
CLIENT_SILENCE = 4.5  # servers that close after 5 seconds still have it open, and are about to close it
DONE = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection to a server, on which requests follow each other."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def healthy(self) -> bool:
        self.writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            await self.reader.readexactly(int(re.search(r"content-length: (\d+)", head)[1]))  # type: ignore[index]
        return head.startswith("http/1.1 200")

    async def closed_within(self, seconds: float) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), seconds) == b""
        except TimeoutError:
            return False


@pytest.mark.fault("client: a request after a silence, on a connection that its server would be closing")
@pytest.mark.system
async def test_every_server_keeps_idle_connections_for_the_seconds_of_the_setting(tmp_path: Path) -> None:
    async with running_product(tmp_path, AGENT_KEEP_ALIVE_SECONDS=str(SETTING)) as product:
        table = "\n".join(product.lines)
        companions = re.findall(r"(http://127\.0\.0\.1:\d+)/mcp", table)
        assert len(companions) == 2
        urls = [product.ready["agent"], product.ready["core"], *companions]
        assert await asyncio.gather(*map(_kept_as_set, urls)) == [(True, True, True)] * 4


async def _kept_as_set(url: str) -> tuple[bool, bool, bool]:
    parts = urlsplit(url)
    connection = Connection(*await asyncio.open_connection(parts.hostname, parts.port))
    with closing(connection.writer):
        assert await connection.healthy()
        kept = not await connection.closed_within(SILENCE)
        return kept, await connection.healthy(), await connection.closed_within(SETTING + 20)


class Peer:
    """Records for every request the connection on which it came."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.ports: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.ports.append(scope["client"][1])
        await self._app(scope, receive, send)


async def _answering(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    path: str = scope["path"]
    body = DONE if path.endswith("completions") else b'{"bucket": "b", "url": "files/b/x"}'
    kind = b"text/event-stream" if path.endswith("completions") else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


async def _model(stack: AsyncExitStack, peer: str, _: Path) -> Call:
    session = await stack.enter_async_context(new_session())

    async def call() -> None:
        async for _ in answer_bytes(session, f"{peer}/chat/completions", b"{}", {}, RETRIES):
            pass

    return call


async def _files(stack: AsyncExitStack, peer: str, _: Path) -> Call:
    files = DialFiles(peer, session=await stack.enter_async_context(new_session()))
    return lambda: files.download("files/b/x.csv", "key", 1000)


async def _interpreter(stack: AsyncExitStack, peer: str, _: Path) -> Call:
    server = InterpreterServer(f"{peer}/mcp", "token", 10)
    stack.push_async_callback(server.close)
    return lambda: server.put("/sessions/s/files/", "a.csv", "1", b"a", Way({}))


async def _local_core(stack: AsyncExitStack, peer: str, tmp_path: Path) -> Call:
    config = {
        "applications": {"general-purpose-agent": {"endpoint": f"{peer}/chat/completions"}},
        "keys": {"key-one": {"project": "ONE", "role": "default"}},
    }
    core = await stack.enter_async_context(local_core(config, tmp_path))
    reader = await stack.enter_async_context(chat_reader(core.url, "key-one"))
    return lambda: reader.ask("Hi")


async def _mcp(stack: AsyncExitStack, peer: str, _: Path) -> Call:
    client = await stack.enter_async_context(MCPClient(f"{peer}/mcp"))
    return lambda: client.call("add", {"left": 1, "right": 2})


CLIENTS = [_model, _files, _interpreter, _local_core, _mcp]


@pytest.mark.fault("client: a request after a silence, on a connection that its server would be closing")
@pytest.mark.system
async def test_no_client_of_the_product_reuses_a_connection_that_its_server_is_about_to_close(tmp_path: Path) -> None:
    ports = await asyncio.gather(*(_ports_of(client, tmp_path) for client in CLIENTS))
    for client, (before, after) in zip(CLIENTS, ports, strict=True):
        assert before, client.__name__
        assert after, client.__name__
        assert before.isdisjoint(after), client.__name__


async def _ports_of(client: Callable[..., Awaitable[Call]], tmp_path: Path) -> tuple[set[int], set[int]]:
    async with AsyncExitStack() as stack:
        is_mcp = client is _mcp
        peer = Peer(small_server().streamable_http_app() if is_mcp else _answering)
        url = await stack.enter_async_context(served_asgi(peer, lifespan="on" if is_mcp else "off"))
        call = await client(stack, url, tmp_path)
        await call()
        before = len(peer.ports)
        await asyncio.sleep(CLIENT_SILENCE)
        await call()
        return set(peer.ports[:before]), set(peer.ports[before:])
