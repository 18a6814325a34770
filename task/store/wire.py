"""Ids, and data as the JSON text of a column."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import orjson


def new_id(prefix: str, digits: int = 8) -> str:
    """An id such as `sess_1a2b3c4d`."""
    return f"{prefix}_{secrets.token_hex(digits // 2)}"


def packed(value: Any) -> str:
    """JSON text of data and dataclasses; what cannot be encoded (half a surrogate pair) becomes a question mark."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(_plain(value)).decode()


def unpacked(text: str) -> Any:
    return orjson.loads(text)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**64 else str(value)  # orjson knows 64 bits
    return value if isinstance(value, (float, bool, type(None))) else str(value)
