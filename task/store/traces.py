"""Traces in the store: saved off the path of the answer, listed by page, complete on request."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, Select, and_, bindparam, delete, exists, func, insert, or_, select, update

from task.errors import NotFound
from task.store import tables
from task.store.database import Database, insert_new, to_row
from task.store.records import Page, packed, storable, unpacked
from task.store.trace_records import CUT, Price, Rating, Trace, TraceFilter
from task.store.writer import Writer

_traces, _calls, _words, _sessions = tables.traces, tables.calls, tables.trace_words, tables.sessions.c
_adapter = cache(lambda: TypeAdapter(Trace))  # built with the first trace that is read
SEARCHED = 2000  # characters of a question, and of an answer, in which filters look for a text
_IN_DATA = (
    *("decisions", "usage", "config", "limits", "warnings", "facts", "history", "asked", "content", "question"),
    *("core_traces",),
)
_OF_A_RUN = re.compile(r"(run_|resp_|chatcmpl-)")  # what stands before a run's number in the names of its answer
_KEPT = select(func.count()).select_from(_calls).where(_calls.c.trace_id == bindparam("named"))


@dataclass(frozen=True, slots=True)
class Traces:
    """The traces of the store. An `owner` of None is an operator, who reads the traces of all owners."""

    database: Database
    writer: Writer
    process_id: str
    prices: Mapping[str, Price]
    clock: Callable[[], float]

    def put(self, trace: Trace, *, stored: bool) -> None:
        """Queue the trace, in the place of an earlier state where one is `stored`."""
        process = self.process_id if trace.status == "running" else None
        self.writer.put(lambda connection: write_trace(connection, trace, process, stored=stored))

    async def get(self, owner: str | None, trace_id: str) -> Trace:
        """The trace with the complete results of its calls.

        Raises:
            NotFound: the owner has no such trace.
        """
        query = select(_traces).where(_traces.c.id == trace_id)
        query = query if owner is None else query.where(_traces.c.owner == owner)
        results = select(_calls.c.result).where(_calls.c.trace_id == trace_id).order_by(_calls.c.position)

        def work(connection: Connection) -> Trace:
            row = connection.execute(query).first()
            if row is None:
                raise NotFound(f"there is no trace {trace_id!r}")
            trace, found = _trace(row), [unpacked(item.result) for item in connection.execute(results)]
            calls = [replace(call, result=whole) for call, whole in zip(trace.tool_calls, found, strict=True)]
            texts = {call.call_id: call.result for call in calls}
            turns = [
                turn
                if turn.content is None
                else replace(turn, content=texts.get(turn.tool_call_id or "", turn.content))
                for turn in trace.turns
            ]
            return replace(trace, tool_calls=tuple(calls), turns=tuple(turns))

        return await self.database.read(work)

    async def result(self, owner: str | None, trace_id: str, position: int) -> str:
        """The complete result of the trace's call with that number, counted from 0.

        Raises:
            NotFound: the owner has no such trace, or it has no such call.
        """
        calls = (await self.get(owner, trace_id)).tool_calls
        if not 0 <= position < len(calls):
            raise NotFound(f"the trace {trace_id} has no call {position}")
        return calls[position].result

    async def list(
        self, owner: str | None, limit: int = 50, cursor: str | None = None, which: TraceFilter | None = None
    ) -> Page[Trace]:
        """The newest traces first, with results cut to 200 characters."""
        query = _filtered(select(_traces), which or TraceFilter(), owner)
        return await self.database.page(query, _traces.c.started_at, limit, cursor, _trace)

    async def rate(self, owner: str, name: str, rating: Rating | None, comment: str | None = None) -> Trace:
        """The trace with another rating, or with none; `name` is its own id, its run's or its answer's.

        Raises:
            NotFound: the owner has no such trace.
        """
        await self.writer.flush()  # the answer may have ended a moment ago
        plain, columns = storable(name), _traces.c
        run = f"run_{_OF_A_RUN.sub('', plain)}"
        any_name = or_(columns.id == plain, columns.run_id == run, columns.response_id == plain)
        named = select(columns.id).where(columns.owner == owner, any_name)
        said = storable(comment) if comment is not None else None
        change = update(_traces).where(_traces.c.id.in_(named)).values(rating=rating, comment=said)
        if not await self.database.execute(change):
            raise NotFound(f"there is no answer {name!r}")
        found = await self.database.first(named)
        return await self.get(owner, found.id if found is not None else name)

    async def ratings(self, owner: str | None, which: TraceFilter | None = None) -> dict[str, int]:
        """How many of these traces are rated up, and how many down."""
        counts = select(_traces.c.rating, func.count()).where(_traces.c.rating.is_not(None)).group_by(_traces.c.rating)
        rows = await self.database.rows(_filtered(counts, which or TraceFilter(), owner))
        return {"up": 0, "down": 0, **{row[0]: row[1] for row in rows}}

    async def delete(self, owner: str, trace_id: str) -> None:
        if not await self.database.execute(delete(_traces).where(_traces.c.id == trace_id, _traces.c.owner == owner)):
            raise NotFound(f"there is no trace {trace_id!r}")


def _filtered(query: Select[*tuple[Any, ...]], which: TraceFilter, owner: str | None) -> Select[*tuple[Any, ...]]:
    query = query if owner is None else query.where(_traces.c.owner == owner)
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


def write_trace(connection: Connection, trace: Trace, process: str | None = None, *, stored: bool = False) -> None:
    """Write the trace, in the place of an earlier state where that is `stored` already; a rating stays."""
    this = and_(_traces.c.id == trace.trace_id, _traces.c.owner == trace.owner)
    # If the session was removed, its traces were with it.
    in_session = [exists().where(_sessions.id == trace.session_id)] if trace.session_id is not None else []
    tools = sorted({call.name for call in trace.tool_calls})
    searched = f"{(trace.question or '')[:SEARCHED]}\n{trace.answer[:SEARCHED]}" if trace.content else ""
    words = {"tools": storable(f" {' '.join(tools)} "), "text": storable(searched.lower())}
    row, kept = _row(trace, process), 0
    running = [_traces.c.status == "running"] if trace.run_id is not None else []
    if stored and connection.execute(update(_traces).where(this, *running).values(row)).rowcount:
        kept = connection.scalar(_KEPT, {"named": trace.trace_id}) or 0
        connection.execute(update(_words).where(_words.c.trace_id == trace.trace_id), words)
    elif insert_new(connection, _traces, row, *in_session):
        connection.execute(insert(_words), {"trace_id": trace.trace_id, **words})
    else:
        return  # another process, which took this one for dead, has ended the run and its trace
    calls = [
        {"trace_id": trace.trace_id, "position": number, "result": packed(call.result)}
        for number, call in enumerate(trace.tool_calls[kept:], kept)
    ]
    if calls:
        connection.execute(insert(_calls), calls)


def _row(trace: Trace, process: str | None) -> dict[str, Any]:
    # A tool's result is stored with its call.
    turns = [
        replace(turn, content=turn.content[:CUT]) if turn.role == "tool" and turn.content else turn
        for turn in trace.turns
    ]
    calls = [replace(call, result=call.result[: CUT + 1]) for call in trace.tool_calls]
    data = packed({"turns": turns, "tool_calls": calls, **{name: getattr(trace, name) for name in _IN_DATA}})
    error = storable(trace.error) if trace.error is not None else None
    about = {"id": trace.trace_id, "process": process, "total_tokens": trace.total_tokens, "error": error}
    row = to_row(_traces, trace, data=data, **about)
    del row["rating"], row["comment"]  # they stay when a later state replaces the row
    return row


def _trace(row: Row[Any]) -> Trace:
    return _adapter().validate_python({**row._mapping, **unpacked(row.data), "trace_id": row.id})
