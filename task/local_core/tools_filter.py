"""Take tools that are not allowed out of an MCP server's answers while they pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import aiohttp
import orjson

MAX_BYTES = 16 * 2**20
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class Unreadable(aiohttp.ClientError):
    """An answer in which tools cannot be told apart; it must not pass."""


class ToolsFilter:
    """Filters `result.tools` of JSON-RPC answers, as one JSON body or as events; all else passes byte by byte.

    A JSON body goes out in `finish`, an event as soon as it is complete.

    Raises:
        Unreadable: by every method; the answer is encoded, too large or not JSON.
    """

    def __init__(self, allowed: frozenset[str], headers: Mapping[str, str]) -> None:
        kind = headers.get("Content-Type", "")
        self._allowed = allowed
        self._events = "text/event-stream" in kind
        self._json = "application/json" in kind
        self._encoded = headers.get("Content-Encoding", "identity") != "identity"
        self._rest = bytearray()
        self._searched = 0  # how far the end of an event has been looked for

    def feed(self, data: bytes) -> bytes:
        if not self._events and not self._json:
            return data
        if self._encoded:
            raise Unreadable("the answer is encoded")
        self._rest += data
        if len(self._rest) > MAX_BYTES:
            raise Unreadable("the answer is too large")
        return self._complete_events() if self._events else b""

    def finish(self) -> bytes:
        rest, self._rest = bytes(self._rest), bytearray()
        if not rest.strip():
            return rest
        return self._event(rest) if self._events else self._filtered(rest) or rest

    def _complete_events(self) -> bytes:
        passed: list[bytes] = []
        start = 0
        for end in [found.end() for found in _EVENT_END.finditer(self._rest, self._searched)]:
            passed.append(self._event(bytes(self._rest[start:end])))
            start = end
        del self._rest[:start]
        self._searched = max(0, len(self._rest) - 3)
        return b"".join(passed)

    def _event(self, block: bytes) -> bytes:
        lines = block.splitlines()
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        changed = self._filtered(data) if data.strip() else None
        if changed is None:
            return block
        others = [line for line in lines if line and not line.startswith(b"data:")]
        return b"\n".join([*others, b"data: " + changed, b"", b""])

    def _filtered(self, text: bytes) -> bytes | None:
        """The text without the forbidden tools; None when there are none in it."""
        try:
            content: Any = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise Unreadable("the answer is not JSON") from None
        messages = cast("list[Any]", content if isinstance(content, list) else [content])
        changed = [self._drop(message) for message in messages]
        return orjson.dumps(content) if any(changed) else None

    def _drop(self, message: Any) -> bool:
        result: Any = message.get("result") if isinstance(message, dict) else None
        tools: Any = result.get("tools") if isinstance(result, dict) else None
        if not isinstance(tools, list):
            return False
        kept = [tool for tool in tools if isinstance(tool, dict) and tool.get("name") in self._allowed]
        result["tools"] = kept
        return len(kept) < len(tools)
