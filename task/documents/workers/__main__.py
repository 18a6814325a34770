"""A reader process: `python -m task.documents.workers PARENT MEMORY SECONDS OUTPUT`, files in, text out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from task.documents.extract import extract
from task.documents.model import Extraction
from task.documents.paging import pages_of
from task.documents.workers.frames import HEADER, Kind, frame, parsed
from task.documents.workers.limits import confine, limit_processor, peak_memory
from task.errors import ToolError

_Frame = tuple[Kind, bytes]


def main(parent: int, memory: int, seconds: float, output: int) -> None:
    """Answer requests until there are none, or until memory ran out."""
    confine(parent, memory)
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the frames
    while (request := _next(incoming)) is not None:
        limit_processor(seconds)
        if not _answer(incoming, outgoing, json.loads(request), output):
            return


def _answer(incoming: BinaryIO, outgoing: BinaryIO, request: dict[str, Any], output: int) -> bool:
    _send(outgoing, Kind.STARTED, b"")
    try:
        for kind, payload in _frames(request, _next(incoming) or b""):
            output -= len(payload)
            if output < 0:
                raise ToolError(f"{request['name']!r} holds more text than can be read. Ask the user for a part of it.")
            _send(outgoing, kind, payload)
    except ToolError as error:
        _send(outgoing, Kind.FAILURE, json.dumps([type(error).__name__, str(error)]).encode())
    except MemoryError:
        # What is left of the memory is in pieces: the next file gets a new process.
        _send(outgoing, Kind.FAILURE, b'["MemoryError", ""]')
        return False
    except Exception as error:
        _send(outgoing, Kind.FAILURE, json.dumps(["unexpected", _place(error)]).encode())
    else:
        _send(outgoing, Kind.DONE, str(peak_memory()).encode())
    return True


def _frames(request: dict[str, Any], content: bytes) -> Iterator[_Frame]:
    found = extract(request["name"], content, request["content_type"])
    if request["want"] == "pages":
        yield from ((Kind.PAGE, page.encode(errors="replace")) for page in pages_of(found))
    else:
        yield Kind.NOTES, json.dumps(found.notes).encode()
        yield from _blocks(found)


def _blocks(found: Extraction) -> Iterator[_Frame]:
    for block in found.blocks:
        head = json.dumps([block.heading, block.page])
        yield Kind.BLOCK, f"{head}\n{block.text}".encode(errors="replace")


def _place(error: Exception) -> str:
    # Where it happened, not its words: these may quote the document.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code if trace is not None else None
    return f"{type(error).__name__} in {code.co_filename}:{trace.tb_lineno}" if trace and code else type(error).__name__


def _next(incoming: BinaryIO) -> bytes | None:
    header = incoming.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    return incoming.read(parsed(header)[1])


def _send(outgoing: BinaryIO, kind: Kind, payload: bytes) -> None:
    for piece in frame(kind, payload):
        outgoing.write(piece)
    outgoing.flush()


if __name__ == "__main__":
    parent, memory, seconds, output = sys.argv[1:]
    main(int(parent), int(memory), float(seconds), int(output))
