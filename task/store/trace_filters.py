"""Find the traces that a listing shows, and the words by which it finds them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select

from task.store import tables
from task.store.filters import TraceFilter
from task.store.records import storable
from task.store.trace_records import Trace

SEARCHED = 2000  # characters of a question, and of an answer, in which filters look for a text
_traces, _words = tables.traces, tables.trace_words


def filtered(query: Select[*tuple[Any, ...]], which: TraceFilter) -> Select[*tuple[Any, ...]]:
    """The query for those of its traces that the filter shows."""
    for name in ("session_id", "run_id", "experiment", "status", "door", "model", "rating"):
        value = getattr(which, name)
        query = query.where(_traces.c[name] == storable(value)) if value is not None else query
    if which.except_door is not None:
        query = query.where(_traces.c.door != storable(which.except_door))
    if which.tool is not None or which.text is not None:
        query = query.join(_words, _words.c.trace_id == _traces.c.id)
    if which.tool is not None:
        query = query.where(_words.c.tools.contains(storable(f" {which.tool} "), autoescape=True))
    if which.text is not None:
        query = query.where(_words.c.text.contains(storable(which.text.lower()), autoescape=True))
    query = query.where(_traces.c.started_at >= which.since) if which.since is not None else query
    return query.where(_traces.c.started_at < which.until) if which.until is not None else query


def words_of(trace_id: str, trace: Trace) -> dict[str, str]:
    """The row in which filters find the trace's tools and texts."""
    tools = sorted({call.name for call in trace.tool_calls})
    question = (trace.question or "") if trace.content else ""
    text = f"{question[:SEARCHED]}\n{trace.answer[:SEARCHED]}" if trace.content else ""
    return {"trace_id": trace_id, "tools": storable(f" {' '.join(tools)} "), "text": storable(text.lower())}
