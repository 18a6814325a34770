"""Messages of the Jupyter protocol as frames, signed with a key that only the kernel and we know."""

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
    """One message of a kernel; `parent` is the id of the request that it belongs to, `size` that of the content.

    Code knows its kernel's key and can send what it likes: nothing but the content being an object may be relied on.
    """

    kind: str
    parent: str
    content: dict[str, Any]
    size: int = 0


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
        if header is None or parent is None or content is None:
            return None
        return Message(scalar(header.get("msg_type")), scalar(parent.get("msg_id")), content, len(parts[3]))

    def _signature(self, parts: Sequence[bytes]) -> bytes:
        return hmac.digest(self._key, b"".join(parts), "sha256").hex().encode()


def scalar(value: Any) -> str:
    """The value as text; empty for what is nested, which may be too deep to be written out."""
    return str(value) if isinstance(value, str | int | float) else ""


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            value = _repaired(text)
        except (ValueError, RecursionError):
            return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _repaired(text: bytes) -> Any:
    """What Python's own JSON lets pass, with a question mark for each half of a letter: texts must be valid Unicode."""
    value = json.loads(text.decode(errors="replace"), parse_constant=lambda _: None)
    return orjson.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
