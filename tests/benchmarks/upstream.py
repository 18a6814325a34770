"""A deterministic model upstream that costs next to nothing: prepared bytes, one process.

The last user message is the script: `words 2000` (that many chunks at once), `paced 50 20` (chunks 20 ms apart),
`chain 5` (five turns with one call of `noop`, then an answer), `parallel 8` (eight calls of `slow` in one turn, then an
answer), `note x` (a call of `write_note`, then its result), `record x 50 20` (the same with `record`, after 50 chunks)
or `add 3` (code that adds to a variable, then what it has printed). The progress of a script is read from the tool
messages after that user message, so no state is kept.
Like DIAL Core it also returns a bucket and the limits of its models. `python -m tests.benchmarks.upstream PORT`
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import httptools
import orjson
import uvloop

WORD = "lorem "
ANSWER_WORDS = 20
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_JSON_HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
_LISTINGS = {b"/v1/bucket": b'{"bucket":"b1"}', b"/openai/models/": b'{"limits":{"max_total_tokens":128000}}'}
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def frame(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    """One chunk of an answer as one HTTP chunk."""
    chunk = {
        "id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "bench",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }  # fmt: skip
    event = b"data: " + orjson.dumps(chunk) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


@cache
def words(count: int) -> tuple[bytes, ...]:
    return (frame({"role": "assistant", "content": ""}), *[frame({"content": WORD})] * count, frame({}, "stop"))


@cache
def calls(tool: str, turn: int, count: int) -> tuple[bytes, ...]:
    """Each call as providers send it: id and name first, the arguments in two pieces."""
    frames = [frame({"role": "assistant", "content": ""})]
    for index in range(count):
        call = {"id": f"call_{turn}_{index}", "type": "function", "function": {"name": tool, "arguments": ""}}
        frames.append(frame({"tool_calls": [{"index": index, **call}]}))
        pieces = ('{"x": ', f"{turn + index}}}")
        frames += [frame({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}) for piece in pieces]
    return (*frames, frame({}, "tool_calls"))


@cache
def code(number: int) -> tuple[bytes, ...]:
    lines = f"total = globals().get('total', 0) + {number}\nprint(f'sum={{total}};')"
    function = {"name": "execute_code", "arguments": orjson.dumps({"code": lines}).decode()}
    call = {"index": 0, "id": "call_code", "type": "function", "function": function}
    return frame({"role": "assistant", "content": ""}), frame({"tool_calls": [call]}), frame({}, "tool_calls")


def writing(tool: str, text: str, count: int = 0) -> tuple[bytes, ...]:
    """So many words, and a call of a tool that takes a text."""
    function = {"name": tool, "arguments": orjson.dumps({"text": text}).decode()}
    call = frame({"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]})
    return (
        frame({"role": "assistant", "content": ""}),
        *[frame({"content": WORD})] * count,
        call,
        frame({}, "tool_calls"),
    )


def reply(messages: Sequence[Mapping[str, Any]]) -> tuple[tuple[bytes, ...], float]:
    """The frames of the answer, and the seconds between them."""
    asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
    results = sum(message["role"] == "tool" for message in messages[asked + 1 :])
    match str(messages[asked]["content"]).split():
        case ["words", count]:
            return words(int(count)), 0.0
        case ["paced", count, milliseconds, *_]:
            return words(int(count)), int(milliseconds) / 1000
        case ["chain", turns] if results < int(turns):
            return calls("noop", results, 1), 0.0
        case ["add", number, *_] if not results:
            return code(int(number)), 0.0
        case ["note", text] if not results:
            return writing("write_note", text), 0.0
        case ["record", text, count, milliseconds] if not results:
            return writing("record", text, int(count)), int(milliseconds) / 1000
        case ["add" | "note" | "record", *_]:
            return (frame({"role": "assistant", "content": str(messages[-1]["content"])}), frame({}, "stop")), 0.0
        case ["parallel", count] if not results:
            return calls("slow", 0, int(count)), 0.0
        case ["chain" | "parallel" | "search" | "consider", *_]:
            return words(ANSWER_WORDS), 0.0
        case _:  # not a script, such as the note that the limit of steps is reached: not the answer that is measured
            return words(1), 0.0


class Peer(asyncio.Protocol):
    """One connection; a request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._pacing: asyncio.Task[None] | None = None
        self._url = b""
        self._body: list[bytes] = []

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pacing is not None:
            self._pacing.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._body = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if b"/chat/completions" not in self._url:
            body = next((listing for path, listing in _LISTINGS.items() if self._url.startswith(path)), b"")
            self._transport.write(_JSON_HEAD % (b"200 OK" if body else b"404 Not Found", len(body), body))
            return
        frames, pause = self.reply(orjson.loads(b"".join(self._body))["messages"])
        if pause:
            self._pacing = asyncio.ensure_future(self._paced(frames, pause))
        else:
            self._transport.write(b"".join((_STREAM_HEAD, *frames, _END)))

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> tuple[tuple[bytes, ...], float]:
        return reply(messages)

    async def _paced(self, frames: Sequence[bytes], pause: float) -> None:
        """Word number i is sent i × pause after the first one, however long the others took."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self._transport.write(b"".join((_STREAM_HEAD, *frames[:2])))
        for number, word in enumerate(frames[2:-1], 1):
            await asyncio.sleep(max(begin + number * pause - loop.time(), 0))
            self._transport.write(word)
        self._transport.write(frames[-1] + _END)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
