"""Which sessions and traces a listing shows, and where its next page begins; without the database's libraries."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from task.errors import InvalidRequest
from task.store.records import Origin, RunStatus
from task.store.trace_records import Rating


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions are listed: those with all these words, of these origins, only the pinned or only the others;
    with `families` the last used one of each family, unless words are searched for."""

    text: str = ""
    origins: tuple[Origin, ...] | None = None
    pinned: bool | None = None
    families: bool = False


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Which traces a listing shows; times are seconds since 1970. Those of `except_door` are left out.

    `tool` is the name of a tool that was called; `text` is part of the question or the answer, in any case.
    """

    session_id: str | None = None
    run_id: str | None = None
    experiment: str | None = None
    status: RunStatus | None = None
    door: str | None = None
    since: float | None = None
    until: float | None = None
    model: str | None = None
    tool: str | None = None
    text: str | None = None
    rating: Rating | None = None
    except_door: str | None = None


def position(cursor: str) -> tuple[float, str]:
    """Time and id of the last row of the page before. Raises `InvalidRequest`: the cursor is not valid."""
    try:
        seconds, _, last = base64.urlsafe_b64decode(cursor.encode("ascii")).decode().partition(" ")
        return float(seconds), last
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest("this cursor is not valid; start again without it") from error
