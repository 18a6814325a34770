"""Pages of a listing, newest first: a cursor names the last row of the page before."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Row, Select, tuple_

from task.errors import InvalidRequest
from task.store.records import Page

T = TypeVar("T")
MAX_LIMIT = 1000


def page_of(query: Select[Any], time: Column[float], key: Column[str], limit: int, cursor: str | None) -> Select[Any]:
    """The query for one page and one row more, which shows whether another page follows.

    Raises:
        InvalidRequest: a malformed cursor, or a limit that is not between 1 and 1000.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit must be between 1 and {MAX_LIMIT}")
    if cursor is not None:
        query = query.where(_before(time, key, cursor))
    return query.order_by(time.desc(), key.desc()).limit(limit + 1)


def page_from(
    rows: Sequence[Row[Any]], limit: int, build: Callable[[Row[Any]], T], place: Callable[[T], tuple[float, str]]
) -> Page[T]:
    """The page that `page_of` asked for."""
    items = tuple(build(row) for row in rows[:limit])
    return Page(items, _cursor(*place(items[-1])) if len(rows) > limit else None)


def _before(time: Column[float], key: Column[str], cursor: str) -> ColumnElement[bool]:
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii")).decode()
        seconds, _, last = text.partition(" ")
        return tuple_(time, key) < tuple_(float(seconds), last)
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest("this is not a cursor of ours; start again without it") from error


def _cursor(seconds: float, key: str) -> str:
    return base64.urlsafe_b64encode(f"{seconds!r} {key}".encode()).decode()
