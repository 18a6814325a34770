"""Where two runs part: their turns side by side, without ids, times and durations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import orjson

from task.store.trace_records import Trace, TracedTurn


@dataclass(frozen=True, slots=True)
class Parting:
    """The first turn that is not the same, counted from 0, and what differs in it, of the one and of the other.

    `what` is "role", "content", "calls", "status", or "end" where one of them has no further turn.
    """

    turn: int
    what: str
    one: Any
    other: Any


def parting(one: Trace, other: Trace) -> Parting | None:
    """Where the runs part; None when they are the same."""
    for place, (mine, theirs) in enumerate(zip_longest(one.turns, other.turns)):
        if mine is None or theirs is None:
            return Parting(place, "end", mine and mine.as_dict(), theirs and theirs.as_dict())
        for what, told, heard in _sides(mine, theirs):
            if told != heard:
                return Parting(place, what, told, heard)
    if one.status != other.status:
        return Parting(len(one.turns), "status", one.status, other.status)
    return None


def _sides(mine: TracedTurn, theirs: TracedTurn) -> list[tuple[str, Any, Any]]:
    return [
        ("role", mine.role, theirs.role),
        ("calls", _calls(mine), _calls(theirs)),
        ("content", mine.content or "", theirs.content or ""),
    ]


def _calls(turn: TracedTurn) -> list[dict[str, Any]]:
    return [{"name": call["name"], "arguments": _arguments(call["arguments"])} for call in turn.tool_calls]


def _arguments(text: Any) -> Any:
    try:
        return orjson.loads(text) if isinstance(text, str) else text
    except orjson.JSONDecodeError:
        return text
