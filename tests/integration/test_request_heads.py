"""What comes before a request can be looked at: bounded in bytes and in time, on every port, before any key."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import mcp_servers.connections
import task.api.connections
import task.local.core.app
from tests.support.asgi import served_asgi
from tests.support.core import local_core
from tests.support.ports import free_port
from tests.support.up import running_product

KIB = 1024
CONNECTIONS = {
    "agent": task.api.connections,
    "companions": mcp_servers.connections,
    "core": task.local.core.app,
}
START = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def lines(size: int, each: int) -> bytes:
    return (
        START + b"".join(b"X-%06d: %b\r\n" % (number, b"a" * (each - 12)) for number in range(size // each)) + b"\r\n"
    )


HEADS: dict[str, tuple[bytes, int]] = {
    "large lines below the bound": (lines(60 * KIB, 6 * KIB), 200),
    "large lines above it": (lines(72 * KIB, 6 * KIB), 431),
    "many lines": (lines(80 * KIB, 20), 431),
    "one line": (lines(100 * KIB, 100 * KIB), 431),
    "the address": (START.replace(b"/health", b"/health?" + b"a" * 70 * KIB) + b"\r\n", 431),
    "without an end": (lines(4000 * KIB, 1000)[:-2], 431),
}


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await Response("done")(scope, receive, send)


@asynccontextmanager
async def serving(name: str, folder: Path) -> AsyncGenerator[str]:
    if name == "core":
        async with local_core({"keys": {"key": {"project": "P", "role": "default"}}}, folder) as core:
            yield core.url
    else:
        options = {"http": CONNECTIONS[name].BoundedConnection, "h11_max_incomplete_event_size": 128 * KIB}
        async with served_asgi(_answer, **options) as url:
            yield url


async def connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def status(url: str, sent: bytes, times: int = 1) -> int:
    """The status of the answer to these bytes; 0 where the connection is closed without one."""
    reader, writer = await connected(url)
    with closing(writer):
        async with asyncio.timeout(20):
            with suppress(ConnectionError):  # it may be refused while we still write
                for _ in range(times):
                    writer.write(sent)
                    await writer.drain()
            with suppress(ConnectionError):
                if found := re.match(rb"HTTP/1\.[01] (\d+)", await reader.read(100)):
                    return int(found[1])
    return 0


@pytest.mark.fault("http: headers above 64 KiB, in any shape, without a key")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("server", CONNECTIONS)
async def test_a_head_above_64_kib_is_a_431(server: str, head: str, tmp_path: Path) -> None:
    sent, expected = HEADS[head]
    async with serving(server, tmp_path) as url:
        assert await status(url, sent) == expected
        assert await status(url, START + b"\r\n") == 200


@pytest.mark.fault("http: trailers without an end behind a body in chunks")
async def test_trailers_are_bounded_like_heads(tmp_path: Path) -> None:
    for server in ("agent", "companions"):
        async with serving(server, tmp_path) as url:
            trailers = CHUNKED + b"1\r\na\r\n0\r\n" + lines(400 * KIB, 1000)[len(START) : -2]
            assert await status(url, trailers) in (0, 400), server
            assert await status(url, CHUNKED + b"1\r\na\r\n0\r\nX: y\r\n\r\n") == 200


@pytest.mark.fault("http: a head that comes byte by byte, or never")
@pytest.mark.parametrize("server", CONNECTIONS)
async def test_a_slow_head_ends_and_a_slow_body_does_not(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CONNECTIONS[server], "HEAD_SECONDS", 0.3)
    async with serving(server, tmp_path) as url, asyncio.timeout(20):
        slow_body, body = await connected(url)
        body.write(CHUNKED + b"1\r\na\r\n")
        await body.drain()
        silent, idle = await connected(url)
        slow, drip = await connected(url)
        drip.write(START)
        while not slow.at_eof():
            with suppress(ConnectionError):
                drip.write(b"X")
                await drip.drain()
            with suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(slow.read(1), 0.02)
        with suppress(ConnectionError):
            assert await silent.read() == b""
        body.write(b"1\r\na\r\n0\r\n\r\n")
        assert (await slow_body.read(12)).startswith(b"HTTP/1.1 ")
        for writer in (body, idle, drip):
            writer.close()


def memory(pid: int) -> int:
    """What the process holds, in KiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


@pytest.mark.fault("http: 60 MB of header lines without a key, on every port of the product")
@pytest.mark.system
async def test_no_port_of_the_product_holds_endless_headers(tmp_path: Path) -> None:
    metrics = free_port()
    async with running_product(tmp_path, AGENT_METRICS__PORT=str(metrics)) as product:
        servers = dict(re.findall(r"(Search|Python)\W+(http://127\.0\.0\.1:\d+)/mcp", "\n".join(product.lines)))
        urls = {"agent": product.ready["agent"], "core": product.ready["core"]}
        urls |= {name.lower(): url for name, url in servers.items()}
        assert urls.keys() == {"agent", "core", "search", "python"}
        urls["metrics"] = f"http://127.0.0.1:{metrics}"
        for name, url in urls.items():
            pid = product.ready["processes"].get(name, product.ready["processes"]["agent"])
            before = memory(pid)
            block = lines(1000 * KIB, 1000)[len(START) : -2]
            assert await status(url, START + block, 1) == 431, name
            assert await status(url, block, 60) in (0, 400, 431), name
            assert memory(pid) - before < 10 * KIB, name
            assert await status(url, START + b"\r\n") == 200, name
