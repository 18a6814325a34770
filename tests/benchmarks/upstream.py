"""A deterministic model upstream that costs next to nothing: prepared bytes, one process.

The last user message is the script: `words 2000` (that many chunks at once), `paced 50 20` (chunks 20 ms apart),
`chain 5` (five turns with one call of `noop`, then an answer), `parallel 8` (eight calls of `slow` in one turn, then an
answer), `note x` (a call of `write_note`, then its result), `record x 50 20` (the same with `record`, after 50 chunks),
`add 3` (code that adds to a variable, then what it has printed), `spin 3` (code that counts so many times), `search 3`
(document number 3 is searched; from `WICKED` on it is HTML that takes long to read), `echo` (an answer of the lines
below it) or a `plan`, whose times `planned` gives. The progress of a script is read from the tool messages after that
user message, so no state is kept.
Like DIAL Core it also returns a bucket, the limits of its models and the files of documents, which have CHARACTERS.
`python -m tests.benchmarks.upstream PORT [CHARACTERS]`
"""

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, cast

import httptools
import orjson
import uvloop

WORD = "lore "  # its length divides that of the pieces in which the loop passes on what has come at once
ANSWER_WORDS = 20
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_JSON_HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
_LISTINGS = {b"/v1/bucket": b'{"bucket":"b1"}', b"/openai/models/": b'{"limits":{"max_total_tokens":128000}}'}
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_FILE = re.compile(rb"/v1/(metadata/)?files/b1/manual-(\d+)\.(?:txt|html)")
_FILE_HEAD = b'HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\nETag: "%d"\r\n\r\n'
FIRST_CHARACTERS = 20_000  # document 0 is short
WICKED, PIECE = 900, 4_000  # the first such document; characters of a piece of an echo
HTML = ("](http:", "[image: ", "<a href=x>y</a> ", "<table><tr><td>a", "<ul><li>a", "&lt;", "<b><i>", "<!--")
NOUNS = (
    "oven", "door", "glass", "tray", "soapy", "water", "timer", "defrost", "meat", "poultry", "seal", "roller",
    "warranty", "month", "spring", "repair",
)  # fmt: skip
Answer = tuple[tuple[bytes, ...], float, float]  # its frames, the seconds between them, those before the first word


def planned(
    calls: Sequence[tuple[float, float]], first: float, words: int, pause: float, kilobytes: float = 0.0
) -> str:
    """The question with a prompt of this size that has the model do this: for each of its `calls` of `wait` the seconds
    until it has written it, and those that it is to wait; then an answer of so many words, `pause` seconds apart."""
    plan = orjson.dumps({"calls": calls, "first": first, "words": words, "pause": pause}).decode()
    return f"plan {plan}\n{WORD * round((kilobytes * 1000 - len(plan)) / len(WORD))}"


def prose(number: int, characters: int) -> str:
    """About this many characters of sentences, all different."""
    words = [f"{NOUNS[(place * 7 + number) % len(NOUNS)]}{place % 97}" for place in range(characters // 8)]
    sentences = (" ".join(words[at : at + 12]).capitalize() + "." for at in range(0, len(words), 12))
    return f"Manual {number}.\n\n{' '.join(sentences)}"


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


def calling(tool: str, words: int = 0, number: int = 0, **arguments: Any) -> tuple[bytes, ...]:
    """So many words, and a call of a tool with these arguments."""
    function = {"name": tool, "arguments": orjson.dumps(arguments).decode()}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return (
        frame({"role": "assistant", "content": ""}),
        *[frame({"content": WORD})] * words,
        frame({"tool_calls": [call]}),
        frame({}, "tool_calls"),
    )


def scripted(script: str, results: int, last: str) -> Answer:
    """The answer to a script of which so many results of tools are there, the last one with this text."""
    match script.split():
        case ["words", count]:
            return words(int(count)), 0.0, 0.0
        case ["paced", count, milliseconds, *_]:
            return words(int(count)), int(milliseconds) / 1000, 0.0
        case ["chain", turns] if results < int(turns):
            return calls("noop", results, 1), 0.0, 0.0
        case ["parallel", count] if not results:
            return calls("slow", 0, int(count)), 0.0, 0.0
        case ["add", number, *_] if not results:
            lines = f"total = globals().get('total', 0) + {number}\nprint(f'sum={{total}};')"
            return calling("execute_code", code=lines), 0.0, 0.0
        case ["spin", count] if not results:
            return calling("execute_code", code=f"for number in range({count}):\n    pass"), 0.0, 0.0
        case ["note", text] if not results:
            return calling("write_note", text=text), 0.0, 0.0
        case ["record", text, count, milliseconds] if not results:
            return calling("record", int(count), text=text), int(milliseconds) / 1000, 0.0
        case ["search", number, *_] if not results:
            url = f"files/b1/manual-{number}.{'txt' if int(number) < WICKED else 'html'}"
            return calling("rag_search_tool", request="How is the seal3 repaired?", file_url=url), 0.0, 0.0
        case ["add" | "note" | "record", *_]:
            return (frame({"role": "assistant", "content": last}), frame({}, "stop")), 0.0, 0.0
        case ["chain" | "parallel" | "search" | "spin", *_]:
            return words(ANSWER_WORDS), 0.0, 0.0
        case _:  # not a script, such as the note that the limit of steps is reached: not the answer that is measured
            return words(1), 0.0, 0.0


def reply(messages: Sequence[Mapping[str, Any]]) -> Answer:
    """The answer to the last message."""
    asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
    results = sum(message["role"] == "tool" for message in messages[asked + 1 :])
    # The time of day and attachments stand behind it.
    script, _, more = str(messages[asked]["content"]).partition("\n")
    if script == "echo":
        pieces = (more[start : start + PIECE] for start in range(0, len(more), PIECE))
        return (*words(1)[:2], *(frame({"content": piece}) for piece in pieces), frame({}, "stop")), 0.0, 0.0
    if not script.startswith("plan "):
        return scripted(script, results, str(messages[-1]["content"]) if results else "")
    plan = orjson.loads(script.removeprefix("plan "))
    if results < len(plan["calls"]):
        written, seconds = plan["calls"][results]
        return calling("wait", number=results, seconds=seconds), 0.0, written
    return words(plan["words"]), plan["pause"], plan["first"]


class Peer(asyncio.Protocol):
    """One connection; a request at a time."""

    characters: ClassVar[int] = 0  # of a document

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
        if found := _FILE.match(self._url):
            self._transport.write(_file(int(found[2]), self.characters, listed=bool(found[1])))
        elif b"/chat/completions" not in self._url:
            body = next((listing for path, listing in _LISTINGS.items() if self._url.startswith(path)), b"")
            self._transport.write(_JSON_HEAD % (b"200 OK" if body else b"404 Not Found", len(body), body))
        else:
            frames, pause, first = reply(orjson.loads(b"".join(self._body))["messages"])
            if pause or first:
                self._pacing = asyncio.ensure_future(self._paced(frames, pause, first))
            else:
                self._transport.write(b"".join((_STREAM_HEAD, *frames, _END)))

    async def _paced(self, frames: Sequence[bytes], pause: float, first: float) -> None:
        """Word number i is sent i × pause after the first one, however long the others took."""
        await asyncio.sleep(first)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self._transport.write(b"".join((_STREAM_HEAD, *frames[:2])))
        for number, word in enumerate(frames[2:-1], 1):
            await asyncio.sleep(max(begin + number * pause - loop.time(), 0))
            self._transport.write(word)
        self._transport.write(frames[-1] + _END)


def _file(number: int, characters: int, *, listed: bool) -> bytes:
    content, kind, name = prose(number, characters if number else FIRST_CHARACTERS).encode(), b"text/plain", "txt"
    if number >= WICKED:
        unit = HTML[(number - WICKED) % len(HTML)]
        content, kind, name = f"<html><body>{number} {unit * (characters // len(unit))}".encode(), b"text/html", "html"
    if listed:
        listing = {
            "name": f"manual-{number}.{name}", "parentPath": None, "bucket": "b1", "nodeType": "ITEM",
            "url": f"files/b1/manual-{number}.{name}", "resourceType": "FILE", "contentLength": len(content),
            "contentType": kind.decode(), "etag": str(number),
        }  # fmt: skip
        content, kind = orjson.dumps(listing), b"application/json"
    return _FILE_HEAD % (kind, len(content), number) + content


async def serve(port: int, characters: int = 0) -> None:
    Peer.characters = characters
    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))
