"""How a reader process and the server talk: frames of one letter, a length and so many bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum

HEADER = struct.Struct("!1sQ")
CHUNK = 256 * 1024


class Kind(StrEnum):
    """What a frame holds. A request and the content are answered with STARTED, any frames, and DONE or FAILURE."""

    REQUEST = "R"  # JSON: what is asked for, the file's name and content type
    CONTENT = "C"  # the file
    STARTED = "S"  # nothing: the request has arrived
    NOTES = "N"  # JSON: the report
    PAGE = "P"  # a page's text
    BLOCK = "B"  # JSON: heading and page; on the next line the text
    DONE = "D"  # JSON: the most memory the process has taken so far, in bytes
    FAILURE = "F"  # JSON: the error's kind and its text


def frame(kind: Kind, payload: bytes) -> Iterator[bytes]:
    """The frame in pieces of bounded length."""
    yield HEADER.pack(kind.encode(), len(payload))
    for start in range(0, len(payload), CHUNK):
        yield payload[start : start + CHUNK]


def parsed(header: bytes) -> tuple[Kind, int]:
    """What follows a header: the kind and the number of bytes.

    Raises:
        ValueError: this is no header.
    """
    letter, length = HEADER.unpack(header)
    return Kind(letter.decode("ascii", "replace")), length
