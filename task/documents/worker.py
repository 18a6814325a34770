"""A reader process: `python -m task.documents.worker MEMORY SECONDS OUTPUT`, files in, text out.

It runs under limits, so a file that takes too much time or memory ends nothing but its reader. Requests and answers
travel in frames of one letter, a length and that many bytes: REQUEST, and for it BLOCKs until NOTES or FAILURE.
"""

from __future__ import annotations

import gc
import json
import os
import struct
import sys
import traceback
from collections.abc import Iterator
from typing import BinaryIO

from task.documents.extract import extract
from task.errors import ToolError

if sys.platform != "win32":  # where a reader runs without these limits
    import resource

HEADER = struct.Struct("!1sQ")
REQUEST = b"R"  # JSON: the file's name and content type; on the next line the file
BLOCK = b"B"  # JSON: heading and page; on the next line the text
NOTES = b"N"  # JSON: the report
FAILURE = b"F"  # JSON: the error's kind and its text
_CHUNK = 256 * 1024
# New objects before a garbage collection. A table's rows are many small lists: with Python's own 700, passes over all
# of them took a fifth of the time.
YOUNG_OBJECTS = 50_000
DOCUMENTS = 50  # that a process reads; libraries may keep some of the memory


def encoded(kind: bytes, payload: bytes) -> Iterator[bytes]:
    """The frame in pieces of bounded length."""
    yield HEADER.pack(kind, len(payload))
    for start in range(0, len(payload), _CHUNK):
        yield payload[start : start + _CHUNK]


def main(memory: int, seconds: float, output: int) -> None:
    """Answer requests until there are no more, until memory runs out, or the process has read enough."""
    if sys.platform != "win32":
        limits = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 256}
        if sys.platform != "darwin":  # macOS refuses it
            limits[resource.RLIMIT_AS] = memory
        for limit, value in limits.items():
            hard = resource.getrlimit(limit)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (value, value))
    gc.set_threshold(YOUNG_OBJECTS)
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the frames
    for _ in range(DOCUMENTS):
        if len(header := incoming.read(HEADER.size)) < HEADER.size:
            return
        if sys.platform != "win32":
            # A second line behind the server's clock: the process ends when it computes for this much longer.
            used = resource.getrusage(resource.RUSAGE_SELF)
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))
        if not _answer(outgoing, incoming.read(HEADER.unpack(header)[1]), output):
            return


def _answer(outgoing: BinaryIO, request: bytes, room: int) -> bool:
    try:
        head, _, content = request.partition(b"\n")
        name, content_type = json.loads(head)
        found = extract(name, content, content_type)
        for block in found.blocks:
            payload = f"{json.dumps([block.heading, block.page])}\n{block.text}".encode(errors="replace")
            room -= len(payload)
            if room < 0:
                raise ToolError(f"{name!r} holds more text than can be read. Ask the user for a part of it.")
            outgoing.writelines(encoded(BLOCK, payload))
        kind, payload = NOTES, json.dumps(found.notes).encode()
    except ToolError as error:
        kind, payload = FAILURE, json.dumps([type(error).__name__, str(error)]).encode()
    except MemoryError:
        kind, payload = FAILURE, b'["MemoryError", ""]'
    except Exception as error:
        # Where it happened, not its message, which may quote the document.
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} in {last.filename}:{last.lineno}"
        kind, payload = FAILURE, json.dumps(["unexpected", place]).encode()
    outgoing.writelines(encoded(kind, payload))
    outgoing.flush()
    # The memory that is left after a MemoryError is fragmented: the next file gets a new process.
    return payload != b'["MemoryError", ""]'


if __name__ == "__main__":
    memory, seconds, output = sys.argv[1:]
    main(int(memory), float(seconds), int(output))
