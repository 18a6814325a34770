"""A reader process: `python -m task.documents.worker MEMORY SECONDS OUTPUT`, files in, text out.

It runs under limits, so a file that takes too much time or memory ends nothing but its reader. Requests and answers
travel in frames of one letter, a length and that many bytes.
"""

from __future__ import annotations

import gc
import json
import os
import struct
import sys
import traceback
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, BinaryIO

from task.documents.extract import extract
from task.errors import ToolError

if sys.platform != "win32":  # where a reader runs without these limits
    import resource

HEADER = struct.Struct("!1sQ")
_CHUNK = 256 * 1024
# New objects before a garbage collection. A table's rows are many small lists: with Python's own 700, passes over all
# of them took a fifth of the time.
YOUNG_OBJECTS = 50_000


class Kind(StrEnum):
    """What a frame holds. A request and its content are answered by STARTED, results, and one of the last two."""

    REQUEST = "R"  # JSON: the file's name and content type
    CONTENT = "C"  # the file
    STARTED = "S"  # nothing: the request has arrived
    NOTES = "N"  # JSON: the report
    BLOCK = "B"  # JSON: heading and page; on the next line the text
    DONE = "D"  # JSON: the most memory the process has used so far, in bytes
    FAILURE = "F"  # JSON: the error's kind and its text


Frame = tuple[Kind, bytes]


def encoded(kind: Kind, payload: bytes) -> Iterator[bytes]:
    """The frame in pieces of bounded length."""
    yield HEADER.pack(kind.encode(), len(payload))
    for start in range(0, len(payload), _CHUNK):
        yield payload[start : start + _CHUNK]


def parsed(header: bytes) -> tuple[Kind, int]:
    """The kind of frame that a header announces and its number of bytes.

    Raises:
        ValueError: this is not a header.
    """
    letter, length = HEADER.unpack(header)
    return Kind(letter.decode("ascii", "replace")), length


def main(memory: int, seconds: float, output: int) -> None:
    """Answer requests until there are no more, or until memory runs out."""
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
    while (request := _receive(incoming)) is not None:
        if sys.platform != "win32":
            # A second line behind the server's clock: the process ends when it computes for this much longer.
            used = resource.getrusage(resource.RUSAGE_SELF)
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))
        if not _answer(incoming, outgoing, json.loads(request), output):
            return


def _answer(incoming: BinaryIO, outgoing: BinaryIO, request: dict[str, Any], output: int) -> bool:
    _send(outgoing, Kind.STARTED, b"")
    try:
        found = extract(request["name"], _receive(incoming) or b"", request["content_type"])
        _send(outgoing, Kind.NOTES, json.dumps(found.notes).encode())
        for block in found.blocks:
            payload = f"{json.dumps([block.heading, block.page])}\n{block.text}".encode(errors="replace")
            output -= len(payload)
            if output < 0:
                raise ToolError(f"{request['name']!r} holds more text than can be read. Ask the user for a part of it.")
            _send(outgoing, Kind.BLOCK, payload)
    except ToolError as error:
        _send(outgoing, Kind.FAILURE, json.dumps([type(error).__name__, str(error)]).encode())
    except MemoryError:
        # The memory that is left is fragmented: the next file gets a new process.
        _send(outgoing, Kind.FAILURE, b'["MemoryError", ""]')
        return False
    except Exception as error:
        # Where it happened, not its message, which may quote the document.
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} in {last.filename}:{last.lineno}"
        _send(outgoing, Kind.FAILURE, json.dumps(["unexpected", place]).encode())
    else:
        _send(outgoing, Kind.DONE, str(_peak_memory()).encode())
    return True


def _receive(incoming: BinaryIO) -> bytes | None:
    header = incoming.read(HEADER.size)
    return incoming.read(parsed(header)[1]) if len(header) == HEADER.size else None


def _send(outgoing: BinaryIO, kind: Kind, payload: bytes) -> None:
    outgoing.writelines(encoded(kind, payload))
    outgoing.flush()


def _peak_memory() -> int:
    if sys.platform == "linux":  # where getrusage would report the peak of the process that started this one
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), 0)
    return 0 if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS


if __name__ == "__main__":
    memory, seconds, output = sys.argv[1:]
    main(int(memory), float(seconds), int(output))
