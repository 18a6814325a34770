"""The benchmarks' upstream with documents: `search 3` has document number 3 searched; Core's file routes serve it.

`consider 3` does the same after as long as models take to decide.

`python -m tests.benchmarks.document_upstream PORT CHARACTERS`
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson
import uvloop

from tests.benchmarks import upstream

FIRST_CHARACTERS = 20_000  # document 0 is short
CONSIDERING_SECONDS = 3.0
WORDS = (
    "oven", "door", "glass", "tray", "soapy", "water", "timer", "defrost", "meat", "poultry", "seal", "roller",
    "warranty", "month", "spring", "repair",
)  # fmt: skip
_FILE = re.compile(rb"/v1/(metadata/)?files/b1/manual-(\d+)\.txt")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n"


def prose(number: int, characters: int) -> str:
    """About this many characters of sentences, all different."""
    words = [f"{WORDS[(place * 7 + number) % len(WORDS)]}{place % 97}" for place in range(characters // 8)]
    sentences = (" ".join(words[at : at + 12]).capitalize() + "." for at in range(0, len(words), 12))
    return f"Manual {number}.\n\n{' '.join(sentences)}"


def search(number: int) -> tuple[bytes, ...]:
    """The turn that has a document searched."""
    arguments = orjson.dumps({"request": "How is the seal3 repaired?", "file_url": f"files/b1/manual-{number}.txt"})
    function = {"name": "rag_search_tool", "arguments": arguments.decode()}
    call = {"tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]}
    return (
        upstream.frame({"role": "assistant", "content": ""}),
        upstream.frame(call),
        upstream.frame({}, "tool_calls"),
    )


class DocumentPeer(upstream.Peer):
    """One connection to it."""

    characters: ClassVar[int] = 0

    def on_message_complete(self) -> None:
        found = _FILE.match(self._url)
        if found is None:
            super().on_message_complete()
            return
        number = int(found[2])
        content = prose(number, self.characters if number else FIRST_CHARACTERS).encode()
        etag = b'ETag: "%d"\r\n' % number
        if found[1]:
            listing = {
                "name": f"manual-{number}.txt", "parentPath": None, "bucket": "b1", "nodeType": "ITEM",
                "url": f"files/b1/manual-{number}.txt", "resourceType": "FILE", "contentLength": len(content),
                "contentType": "text/plain", "etag": str(number),
            }  # fmt: skip
            self._transport.write(_HEAD % (b"application/json", len(body := orjson.dumps(listing)), etag) + body)
        else:
            self._transport.write(_HEAD % (b"text/plain", len(content), etag) + content)

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> tuple[tuple[bytes, ...], float]:
        asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
        match str(messages[asked]["content"]).split():
            case ["search", number] if len(messages) == asked + 1:
                return search(int(number)), 0.0
            case ["consider", number, *_] if len(messages) == asked + 1:
                role, *call = search(int(number))
                return (role, role, *call), CONSIDERING_SECONDS
            case _:
                return super().reply(messages)


async def serve(port: int, characters: int) -> None:
    DocumentPeer.characters = characters
    server = await asyncio.get_running_loop().create_server(DocumentPeer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
