"""Request answers over bare sockets, so that reading them costs the load's core next to nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

import orjson

from tests.benchmarks.upstream import WORD

_WORD = WORD.encode()
_TAIL = b"\r\n0\r\n\r\n"  # with the end of the chunk before it: a head may end in a 0 as well


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds to the end of one answer and to the arrival of its words, and how many of them it had."""

    seconds: float
    arrivals: Sequence[float]
    words: int

    @property
    def first(self) -> float:
        return self.arrivals[0]


def request(
    path: str, script: str, history: Sequence[dict[str, Any]] = (), attached: Sequence[Any] = (), *, key: str = "key",
    **fields: Any,
) -> bytes:  # fmt: skip
    """The bytes of a streaming chat completion request whose last message is `script`; `fields` are further ones."""
    custom = {"custom_content": {"attachments": attached}} if attached else {}
    messages = [*history, {"role": "user", "content": script, **custom}]
    body = orjson.dumps({"stream": True, "messages": messages, **fields})
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nApi-Key: {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Answers(asyncio.Protocol):
    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._arrivals: list[float] = []
        self._done: asyncio.Future[float] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._arrivals += [perf_counter()] * data.count(_WORD)
        self._pieces.append(data)
        end = data if len(data) >= len(_TAIL) else b"".join(self._pieces[-len(_TAIL) :])
        ended = end.endswith(_TAIL) or not self._pieces[0].startswith(b"HTTP/1.1 200")
        if ended and self._done is not None and not self._done.done():
            self._done.set_result(perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("the connection ended within an answer"))

    async def ask(self, request: bytes, seconds: float) -> Timing:
        self._pieces, self._arrivals = [], []
        self._done = asyncio.get_running_loop().create_future()
        started = perf_counter()
        self.transport.write(request)
        ended = await asyncio.wait_for(self._done, seconds)
        answer = b"".join(self._pieces)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
        return Timing(ended - started, [time - started for time in self._arrivals], answer.count(_WORD))


@dataclass(slots=True)
class Load:
    """Connections to one server, kept between answers."""

    port: int
    _idle: list[_Answers] = field(default_factory=list[_Answers])

    async def ask(self, request: bytes, seconds: float = 60) -> Timing:
        connection = self._free()
        if connection is None:
            _, connection = await asyncio.get_running_loop().create_connection(_Answers, "127.0.0.1", self.port)
        timing = await connection.ask(request, seconds)
        self._idle.append(connection)
        return timing

    async def ask_at_once(self, request: bytes, people: int) -> list[Timing]:
        return await asyncio.gather(*(self.ask(request) for _ in range(people)))

    def close(self) -> None:
        for connection in self._idle:
            connection.transport.close()

    def _free(self) -> _Answers | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():  # a server closes connections that were idle for seconds
                return connection
        return None
