"""Which traces a listing shows, and the words by which it finds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select

from task.store import tables
from task.store.records import RunStatus, storable
from task.store.trace_records import Rating, Trace

SEARCHED = 2000  # characters of a question, and of an answer, in which filters look for a text
_traces, _words = tables.traces, tables.trace_words


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

    def applied(self, query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
        for name in ("session_id", "run_id", "experiment", "status", "door", "model", "rating"):
            value = getattr(self, name)
            query = query.where(_traces.c[name] == storable(value)) if value is not None else query
        if self.except_door is not None:
            query = query.where(_traces.c.door != storable(self.except_door))
        if self.tool is not None or self.text is not None:
            query = query.join(_words, _words.c.trace_id == _traces.c.id)
        if self.tool is not None:
            query = query.where(_words.c.tools.contains(storable(f" {self.tool} "), autoescape=True))
        if self.text is not None:
            query = query.where(_words.c.text.contains(storable(self.text.lower()), autoescape=True))
        query = query.where(_traces.c.started_at >= self.since) if self.since is not None else query
        return query.where(_traces.c.started_at < self.until) if self.until is not None else query


def words_of(trace_id: str, trace: Trace) -> dict[str, str]:
    """The row in which filters find the trace's tools and texts."""
    tools = sorted({call.name for call in trace.tool_calls})
    question = (trace.question or "") if trace.content else ""
    text = f"{question[:SEARCHED]}\n{trace.answer[:SEARCHED]}" if trace.content else ""
    return {"trace_id": trace_id, "tools": storable(f" {' '.join(tools)} "), "text": storable(text.lower())}
