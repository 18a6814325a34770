"""Parse server-sent events from pieces of bytes, wherever they were split."""

from __future__ import annotations

import re

DONE = b"[DONE]"
EVENT_LIMIT = 64 * 2**20  # bytes; a picture may come inside one event

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """One event is larger than the reader's limit."""


class SseReader:
    """Turns bytes into the payloads of whole events; `[DONE]` is a payload like any other.

    Comments and fields other than `data` are dropped. `close()` returns a body that is JSON instead of events as one
    payload, and a last event without its blank line.
    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
    """

    __slots__ = ("_held", "_is_json", "_length", "_limit", "_started")

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        self._limit = limit
        self._held: list[bytes] = []
        self._length = 0
        self._started = False
        self._is_json = False

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes.

        Raises:
            EventTooLong: more than `limit` bytes have come without an event's end.
        """
        if not self._started:
            data = (self._released() + data).removeprefix(_BOM)
            begin = data.lstrip()
            self._started = bool(begin) and not _BOM.startswith(begin)
            self._is_json = begin[:1] in (b"{", b"[")
        elif not self._held and data[:6] == b"data: " and data.find(b"\n") == len(data) - 2 and data[-1:] == b"\n":
            return [data[6:-2]]
        if self._is_json or (b"\n" not in data and b"\r" not in data):
            self._hold(data)
            return []
        if self._held:
            data = self._released() + data
        if b"\r" in data:
            # A carriage return at the very end stays: it may be half of a line end.
            half = b"\r" if data.endswith(b"\r") else b""
            data = _LINE_END.sub(b"\n", data.removesuffix(half)) + half
        blocks = data.split(b"\n\n")
        if rest := blocks.pop():
            self._hold(rest)
        return [payload for block in blocks if (payload := _payload(block)) is not None]

    def close(self) -> list[bytes]:
        """The payloads that remain at the end of the bytes."""
        rest = self._released()
        if self._is_json:
            return [rest]
        payload = _payload(_LINE_END.sub(b"\n", rest).strip(b"\n"))
        return [] if payload is None else [payload]

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._length += len(data)
        if self._length > self._limit:
            raise EventTooLong(f"more than {self._limit} bytes without an event's end")

    def _released(self) -> bytes:
        held = b"".join(self._held)
        self._held.clear()
        self._length = 0
        return held


def _payload(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
