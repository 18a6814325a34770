"""What a process that died in the middle left behind: marked as interrupted, with the text that was heard kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from task.conversation.messages import Message, Role
from task.sessions import tables
from task.sessions.wire import unpacked

TEXT = "text"
ERROR = "the process that answered ended in the middle"

Append = Callable[[AsyncConnection, str, Sequence[Message], float], Awaitable[None]]


async def interrupt(connection: AsyncConnection, living: set[str], now: float, append: Append) -> int:
    """Mark the runs and traces of processes that do not live; how many runs there were.

    `append` adds messages to a session: the part of an answer that had been heard.
    """
    runs, traces = tables.runs, tables.traces
    lost = update(runs).where(runs.c.status == "running", runs.c.process.not_in(living))
    lost = lost.values(status="interrupted", ended_at=now, error=ERROR).returning(runs.c.id, runs.c.session_id)
    rows = (await connection.execute(lost)).all()
    for row in rows:
        text = await _heard(connection, row.id)
        if row.session_id is not None and text:
            await append(connection, row.session_id, [Message(Role.ASSISTANT, text)], now)
        waiting = update(tables.approvals).where(tables.approvals.c.run_id == row.id)
        await connection.execute(waiting.where(tables.approvals.c.status == "waiting").values(status="expired"))
    broken = update(traces).where(
        traces.c.status == "running", or_(traces.c.process.is_(None), traces.c.process.not_in(living))
    )
    await connection.execute(broken.values(status="interrupted", completed_at=now, error=ERROR))
    return len(rows)


async def _heard(connection: AsyncConnection, run_id: str) -> str:
    events = tables.events.c
    query = select(events.data).where(events.run_id == run_id).order_by(events.first)
    told = [item for row in await connection.execute(query) for item in unpacked(row.data)]
    return "".join(item["text"] for item in told if item["type"] == TEXT)
