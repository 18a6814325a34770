"""An image deployment like DIAL's adapters: it stores its picture with the key of the request."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession, FormData, web

from tests.support.core_peers import DONE, Handler, Peer, chunk, peer

NAME = "dall-e-3"
REVISED = "A cheerful tabby cat in round sunglasses, photographed at noon"


def png(width: int = 2, height: int = 2) -> bytes:
    """A whole grey PNG."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + b"\x80" * width for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", rows) + part(b"IEND", b"")


PNG = png()


@dataclass(slots=True)
class ImageDeployment:
    """The deployment; a test sets `core`. `models` is its entry in Core's configuration."""

    peer: Peer
    core: str = ""

    @property
    def models(self) -> dict[str, Any]:
        return {NAME: {"type": "chat", "endpoint": f"{self.peer.url}/chat/completions"}}


@asynccontextmanager
async def image_deployment(answer: Handler | None = None) -> AsyncGenerator[ImageDeployment]:
    """A deployment that stores a picture and attaches it, or gives `answer`."""

    async def paint(request: web.Request) -> web.StreamResponse:
        url = await _stored(running.core, request.headers["Api-Key"], len(running.peer.requests))
        revised = {"title": "Revised prompt", "data": REVISED}
        return await attaching(revised, {"title": "Image", "type": "image/png", "url": url})(request)

    async with peer(answer or paint) as application:
        running = ImageDeployment(application)
        yield running


async def _stored(core: str, key: str, number: int) -> str:
    async with ClientSession(core, headers={"Api-Key": key}) as session:
        async with session.get("/v1/bucket") as found:
            appdata = (await found.json())["appdata"]
        form = FormData()
        form.add_field("file", PNG, filename="picture.png", content_type="image/png")
        async with session.put(f"/v1/files/{appdata}/images/{number}.png", data=form) as stored:
            return (await stored.json())["url"]


def attaching(*attachments: Mapping[str, Any], text: str = "", finish: str = "stop") -> Handler:
    """A deployment that streams this text and these attachments."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        numbered = [{"index": number, **item} for number, item in enumerate(attachments)]
        await response.write(chunk({"role": "assistant", "content": text}))
        if numbered:
            await response.write(chunk({"custom_content": {"attachments": numbered}}))
        await response.write(chunk({}, finish) + DONE)
        return response

    return answer


def never(asked: asyncio.Event) -> Handler:
    """A deployment that sets `asked` and never answers."""

    async def answer(_: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.Event().wait()
        return web.Response()

    return answer
