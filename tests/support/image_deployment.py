"""An image deployment like DIAL's adapters: it stores its picture with the key of the request."""

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


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


_HEADER = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)
_ROWS = zlib.compress(b"\0\x80\x80" * 2)
PNG = b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", _HEADER) + _part(b"IDAT", _ROWS) + _part(b"IEND", b"")


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
