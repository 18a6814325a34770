"""How agents and the embedding process talk: frames of a JSON header and raw bytes over a Unix socket."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass, field
from typing import Any

_LENGTHS = struct.Struct("!II")
MAX_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Frame:
    """`kind` tells what it means, `facts` are small values, `body` is text or float32 vectors."""

    kind: str
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    body: bytes = b""


async def send(writer: asyncio.StreamWriter, frame: Frame) -> None:
    header = json.dumps({"kind": frame.kind, **frame.facts}).encode()
    writer.write(_LENGTHS.pack(len(header), len(frame.body)) + header)
    writer.write(frame.body)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        ConnectionError: the other side is gone, or says what no frame says.
    """
    try:
        header_size, body_size = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if header_size + body_size > MAX_BYTES:
            raise ConnectionError("a frame is larger than any can be")
        header = json.loads(await reader.readexactly(header_size))
        body = await reader.readexactly(body_size)
    except (asyncio.IncompleteReadError, ValueError) as error:
        raise ConnectionError("the connection broke off") from error
    return Frame(header.pop("kind"), header, body)
