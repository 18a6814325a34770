"""The Markdown of a call's stage: its arguments and its response, short enough for DIAL Chat to show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

ARGUMENT_CHARS = 4_000
RESPONSE_CHARS = 30_000  # DIAL Chat replaces a stage above 40 KB by a download button
_UPPER = {"url": "URL", "id": "ID", "sql": "SQL"}


def request_arguments(arguments: Mapping[str, Any]) -> str:
    lines = [f"**{label(name)}**: {_value(value)}" for name, value in arguments.items()]
    return "\n\n".join(["## Request arguments:", *lines, ""])


def response(text: str) -> str:
    return f"## Response:\n\n{clipped(text, RESPONSE_CHARS)}\n"


def label(name: str) -> str:
    """An argument's name as a person reads it: `file_url` is "File URL"."""
    return " ".join(_UPPER.get(word, word.capitalize()) for word in name.split("_") if word)


def clipped(text: str, characters: int) -> str:
    """At most that many characters and, as JSON may take several bytes for one, that many bytes of UTF-8."""
    raw = text.encode(errors="replace")
    if len(raw) <= characters:
        return text
    return raw[:characters].decode(errors="ignore") + f"\n\n[... {len(raw) - characters:,} more bytes]"


def _value(value: Any) -> str:
    if isinstance(value, str):
        text = clipped(value, ARGUMENT_CHARS)
        return f"\n\n```\n{text}\n```" if "\n" in text else text
    return clipped(json.dumps(value, ensure_ascii=False, default=str), ARGUMENT_CHARS)
