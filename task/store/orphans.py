"""What a process that died in the middle left behind: marked as interrupted, with what was heard kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from task.conversation.messages import assistant
from task.llm.base import ModelOptions, Usage
from task.store import tables
from task.store.records import FINISHED
from task.store.session_rows import add_answer, messages_of
from task.store.trace_store import write_trace
from task.store.traces import TraceObserver, TraceStart
from task.store.wire import packed, unpacked

STARTED, TEXT = "started", "text"
INTERRUPTED = "interrupted"
ERROR = "the process that answered ended in the middle"


def left_behind(connection: Connection, living: set[str]) -> bool:
    """Whether a process that does not live left a run or a trace running, or is still listed."""
    runs, traces, processes = tables.runs.c, tables.traces.c, tables.processes.c
    lost = (
        select(processes.id).where(processes.id.not_in(living)),
        select(runs.id).where(runs.status == "running", runs.process.not_in(living)),
        select(traces.id).where(traces.status == "running", traces.process.not_in(living)),
    )
    return any(connection.execute(query.limit(1)).first() is not None for query in lost)


def interrupt(connection: Connection, living: set[str], now: float) -> int:
    """Mark the runs and traces of processes that do not live; how many runs there were."""
    runs, traces, approvals = tables.runs, tables.traces, tables.approvals
    lost = update(runs).where(runs.c.status == "running", runs.c.process.not_in(living))
    lost = lost.values(status=INTERRUPTED, ended_at=now, error=ERROR)
    rows = connection.execute(lost.returning(*runs.c)).all()
    for row in rows:
        told = _told(connection, row.id)
        text = "".join(item["text"] for item in told if item["type"] == TEXT)
        _leave_trace(connection, row, told, text, now)
        connection.execute(insert(tables.events), _last_event(row, told[-1]["id"] + 1 if told else 1))
        if row.session_id is not None and text:
            add_answer(connection, row.session_id, [assistant(text)], now)
        waiting = update(approvals).where(approvals.c.run_id == row.id, approvals.c.status == "waiting")
        connection.execute(waiting.values(status="expired"))
    broken = update(traces).where(traces.c.status == "running", traces.c.process.not_in(living))
    connection.execute(broken.values(status=INTERRUPTED, completed_at=now, error=ERROR))
    return len(rows)


def _leave_trace(
    connection: Connection, run: Row[Any], told: Sequence[Mapping[str, Any]], text: str, now: float
) -> None:
    """A trace of the run's events, where it ended before its own was first stored."""
    traces, started = tables.traces.c, next((item for item in told if item["type"] == STARTED), None)
    if run.trace_id is None or connection.scalar(select(traces.id).where(traces.id == run.trace_id)) is not None:
        return
    request: Mapping[str, Any] = started["request"] if started else {"door": "", "model": "", "options": {}}
    history = started["messages"] if started else 0
    asked = messages_of(connection, run.session_id)[history:] if run.session_id is not None else ()
    times = [run.started_at]
    start = TraceStart(
        run.owner, request["door"], request["model"], ModelOptions(**request["options"]), asked, history,
        run.session_id, run.id, run.experiment,
    )  # fmt: skip
    observer = TraceObserver(run.trace_id, start, clock=lambda: times[-1])
    times.append(now)
    if text:
        observer.model_answered(assistant(text), Usage(), 0.0)
    observer.end(INTERRUPTED, ERROR)
    write_trace(connection, observer.trace())


def _told(connection: Connection, run_id: str) -> list[Mapping[str, Any]]:
    events = tables.events.c
    query = select(events.data).where(events.run_id == run_id).order_by(events.first)
    return [item for row in connection.execute(query) for item in unpacked(row.data)]


def _last_event(run: Row[Any, Any, Any], number: int) -> dict[str, Any]:
    """What listeners wait for, which the dead process can tell them no more."""
    event = {
        "id": number, "type": FINISHED, "status": INTERRUPTED, "limit": None,
        "run_id": run.id, "session_id": run.session_id, "trace_id": run.trace_id,
    }  # fmt: skip
    return {"run_id": run.id, "first": number, "last": number, "data": packed([event])}
