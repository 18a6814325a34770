"""Messages of the Jupyter protocol as frames, signed with a key that only the kernel and we know."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import orjson

DELIMITER = b"<IDS|MSG>"
PROTOCOL = "5.3"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a kernel; `parent` is the id of the request that it belongs to."""

    kind: str
    parent: str
    content: dict[str, Any]


class Envelope:
    """Source: the Jupyter messaging specification, "The Wire Protocol"."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._session = secrets.token_hex(16)

    def sealed(self, kind: str, content: dict[str, Any]) -> tuple[str, list[bytes]]:
        """A request's id and frames."""
        name = secrets.token_hex(16)
        header = {
            "msg_id": name, "msg_type": kind, "session": self._session, "username": "server", "version": PROTOCOL,
            "date": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        # The code may hold what is no valid Unicode; the standard library escapes it.
        parts = [orjson.dumps(header), b"{}", b"{}", json.dumps(content).encode()]
        return name, [DELIMITER, self._signature(parts), *parts]

    def opened(self, frames: Sequence[bytes]) -> Message | None:
        """The message in the frames; None when it is not signed with the key, or malformed."""
        if DELIMITER not in frames:
            return None
        start = list(frames).index(DELIMITER) + 1
        signature, parts = frames[start : start + 1], frames[start + 1 : start + 5]
        if len(parts) < 4 or not hmac.compare_digest(signature[0], self._signature(parts)):
            return None
        header, parent, content = (_object(parts[place]) for place in (0, 1, 3))
        return Message(str(header.get("msg_type")), str(parent.get("msg_id")), content)

    def _signature(self, parts: Sequence[bytes]) -> bytes:
        return hmac.digest(self._key, b"".join(parts), "sha256").hex().encode()


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:  # lone surrogates, which Python's own JSON lets pass
        try:
            value = json.loads(text)
        except ValueError:
            return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
