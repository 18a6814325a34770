"""The editor: JSON-RPC on the standard streams, one message a line, whatever comes."""

import asyncio
import json
import os
from types import NoneType
from typing import Any, Self

import orjson
from acp import RequestError
from acp.connection import Connection

MOST_BYTES = 32 * 2**20  # of a message: a picture of 10 MB fits
TOO_LONG = f"A message has at most {MOST_BYTES:,} bytes."


class Editor:
    """The SDK's transport. Its own takes lines of any length, answers nothing to those that are not JSON, and breaks at
    JSON that is not a message. `reads` and `writes`: whether it does that with files."""

    connection: Connection

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.drain, self.end = writer.drain, reader.feed_eof
        self.reads = self.writes = False

    @classmethod
    async def open(cls, given: int, taken: int) -> Self:
        """The editor on descriptors of pipes or sockets, one to read and one to write."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(MOST_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(given, "rb", 0))
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        pipe, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(taken, "wb", 0))
        return cls(reader, asyncio.StreamWriter(pipe, protocol, None, loop))

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end of the input. What is not a message is answered with JSON-RPC's error."""
        fits = True
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return None
            except asyncio.LimitOverrunError as error:
                await self._reader.readexactly(error.consumed)
                fits = False
                continue
            found, fits = _message(line) if fits else RequestError(-32600, TOO_LONG), True
            if not isinstance(found, RequestError):
                return found
            if line.strip():
                await self.send({"jsonrpc": "2.0", "id": None, "error": found.to_error_obj()})

    def put(self, message: dict[str, Any]) -> None:
        """Send a message behind those before it, without waiting for the editor."""
        # In ASCII halves of characters are valid, too; `str` is for what errors quote.
        self._writer.write(json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n")

    async def send(self, message: dict[str, Any]) -> None:
        self.put(message)
        await self.drain()

    async def close(self) -> None:
        self._writer.close()


def _message(line: bytes) -> dict[str, Any] | RequestError:
    try:
        found: Any = orjson.loads(line)
    except ValueError:
        return RequestError.parse_error()
    named = isinstance(found, dict) and isinstance(found.get("method"), str | None)
    # True would answer the request 1.
    sound = named and type(found.get("id")) in (str, int, NoneType) and isinstance(found.get("error"), dict | None)
    return found if sound else RequestError.invalid_request()
