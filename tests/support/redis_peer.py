"""The part of Redis that the index store uses, in the test's own process: GET, SET with EX, DEL over RESP3."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic

OK = b"+OK\r\n"
NOTHING = b"_\r\n"


@dataclass
class RedisPeer:
    """The running peer: its `url`, and the `keys` that were set and have not expired."""

    port: int = 0
    clock: Callable[[], float] = monotonic
    _values: dict[bytes, tuple[bytes, float]] = field(default_factory=dict[bytes, tuple[bytes, float]])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def keys(self) -> list[str]:
        return [key.decode() for key in self._values if self._get(key) != NOTHING]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                writer.write(self._answer(await _command(reader)))
                await writer.drain()
        writer.close()

    def _answer(self, command: list[bytes]) -> bytes:
        match [command[0].upper(), *command[1:]]:
            case [b"GET", key]:
                return self._get(key)
            case [b"SET", key, value, unit, seconds] if unit.upper() == b"EX":
                self._values[key] = value, self.clock() + int(seconds)
                return OK
            case [b"DEL", key]:
                return b":%d\r\n" % (self._values.pop(key, None) is not None)
            case [b"HELLO", b"3", *_]:
                return b"%1\r\n$5\r\nproto\r\n:3\r\n"
            case [b"CLIENT" | b"SELECT", *_]:
                return OK
            case _:
                return b"-ERR unknown command '%s'\r\n" % command[0]

    def _get(self, key: bytes) -> bytes:
        value, ends = self._values.get(key, (b"", 0.0))
        return b"$%d\r\n%s\r\n" % (len(value), value) if ends > self.clock() else NOTHING


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    count = await _number(reader, b"*")
    words: list[bytes] = []
    for _ in range(count):
        size = await _number(reader, b"$")
        words.append((await reader.readexactly(size + 2))[:-2])
    return words


async def _number(reader: asyncio.StreamReader, kind: bytes) -> int:
    line = await reader.readuntil(b"\r\n")
    assert line.startswith(kind), line
    return int(line[1:])


@asynccontextmanager
async def redis_peer() -> AsyncGenerator[RedisPeer]:
    peer = RedisPeer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
