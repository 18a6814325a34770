"""The rows of sessions and messages, inside whatever transaction they are worked on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select, update

from task.conversation.messages import Message
from task.errors import Conflict, NotFound
from task.store import tables
from task.store.database import insert_new
from task.store.paging import page_from, page_of
from task.store.records import Page, Run, Session
from task.store.wire import message_data, message_from, new_id, packed, unpacked

TITLE_LENGTH = 200
MOST_BRANCHES = 20
_sessions, _messages = tables.sessions, tables.messages


def insert_session(connection: Connection, owner: str, title: str, parent: str | None, now: float) -> Session:
    """A new session with an id of its own."""
    while True:
        made = Session(new_id("sess"), owner, now, now, title=short_title(title), parent=parent)
        row = {
            "id": made.session_id, "owner": owner, "title": made.title, "parent": parent, "started_at": now,
            "updated_at": now, "version": 0, "length": 0,
        }  # fmt: skip
        if insert_new(connection, _sessions, row):
            return made


def row_of(connection: Connection, owner: str, session_id: str) -> Row[Any]:
    """The session's row.

    Raises:
        NotFound: the owner has no such session.
    """
    query = select(_sessions).where(_sessions.c.id == session_id, _sessions.c.owner == owner)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"there is no session {session_id!r}")
    return row


def messages_of(connection: Connection, session_id: str) -> tuple[Message, ...]:
    """The session's messages, oldest first."""
    query = select(_messages.c.data).where(_messages.c.session_id == session_id).order_by(_messages.c.position)
    return tuple(message_from(unpacked(row.data)) for row in connection.execute(query))


def whole(connection: Connection, owner: str, session_id: str) -> Session:
    """The session with its messages and traces; raises `NotFound`."""
    row, columns = row_of(connection, owner, session_id), tables.traces.c
    query = select(columns.id).where(columns.session_id == session_id).order_by(columns.started_at, columns.id)
    traces = tuple(found.id for found in connection.execute(query))
    return _session(row, messages_of(connection, session_id), traces)


def page(connection: Connection, owner: str, limit: int, cursor: str | None) -> Page[Session]:
    """The owner's sessions, the last used first."""
    query = select(_sessions).where(_sessions.c.owner == owner)
    found = connection.execute(page_of(query, _sessions.c.updated_at, _sessions.c.id, limit, cursor)).all()
    return page_from(found, limit, _session, lambda session: (session.updated_at, session.session_id))


def branches(connection: Connection, session_id: str) -> tuple[str, ...]:
    """The ids of the branches of the session, the last used first."""
    query = select(_sessions.c.id).where(_sessions.c.parent == session_id).order_by(_sessions.c.updated_at.desc())
    return tuple(row.id for row in connection.execute(query.limit(MOST_BRANCHES)))


def append(
    connection: Connection, owner: str, session_id: str, messages: Sequence[Message], version: int, now: float
) -> int:
    """Add messages to the session as it was at `version`; the version it has now. Raises `Conflict` and `NotFound`."""
    columns = _sessions.c
    claim = update(_sessions).where(
        columns.id == session_id, columns.owner == owner, columns.version == version, columns.ended_at.is_(None)
    )
    values = {"version": version + 1, "updated_at": now, "length": columns.length + len(messages)}
    claimed = connection.execute(claim.values(values).returning(columns.length)).first()
    if claimed is not None:
        write(connection, session_id, claimed.length - len(messages), messages)
        return version + 1
    if row_of(connection, owner, session_id).ended_at is not None:
        raise Conflict(f"the session {session_id} has ended; start another one")
    raise Conflict(f"the session {session_id} was changed by another request meanwhile; read it and try again")


def add_answer(connection: Connection, session_id: str, messages: Sequence[Message], now: float) -> None:
    """Add what a run has said to its session, whatever its version is; nothing when the session is gone."""
    columns = _sessions.c
    grown = update(_sessions).where(columns.id == session_id).returning(columns.length)
    values = {"version": columns.version + 1, "updated_at": now, "length": columns.length + len(messages)}
    row = connection.execute(grown.values(values)).first()
    if row is not None:
        write(connection, session_id, row.length - len(messages), messages)


def write(connection: Connection, session_id: str, position: int, messages: Sequence[Message]) -> None:
    """Write messages from `position` on; the session's row is not touched."""
    rows = [
        {"session_id": session_id, "position": number, "data": packed(message_data(message))}
        for number, message in enumerate(messages, position)
    ]
    if rows:
        connection.execute(insert(_messages), rows)


def remove(connection: Connection, which: ColumnElement[bool]) -> int:
    """Remove sessions with all that belongs to them; how many there were."""
    gone = select(_sessions.c.id).where(which)
    for table in (tables.traces, tables.approvals, tables.turns, tables.grants):
        connection.execute(delete(table).where(table.c.session_id.in_(gone)))
    return connection.execute(delete(_sessions).where(which)).rowcount


def take_back(connection: Connection, run: Run, first: int, end: int | None, now: float) -> None:
    """Remove a run of a session with its trace; its messages from `first` on only where they are the last ones."""
    columns = _sessions.c
    newest = update(_sessions).where(columns.id == run.session_id, columns.length == end)
    shorter = newest.values(version=columns.version + 1, updated_at=now, length=first)
    if connection.execute(shorter.returning(columns.id)).first() is not None:
        rest = (_messages.c.session_id == run.session_id, _messages.c.position >= first)
        connection.execute(delete(_messages).where(*rest))
    connection.execute(delete(tables.traces).where(tables.traces.c.id == run.trace_id))
    connection.execute(delete(tables.approvals).where(tables.approvals.c.run_id == run.run_id))
    connection.execute(delete(tables.turns).where(tables.turns.c.session_id == run.session_id))
    runs = tables.runs.c
    connection.execute(delete(tables.runs).where(runs.id == run.run_id))
    if connection.execute(select(runs.id).where(runs.session_id == run.session_id).limit(1)).first() is None:
        remove(connection, columns.id == run.session_id)


def short_title(text: str) -> str:
    """One line of at most 200 characters."""
    return " ".join(text.replace("\0", " ").split())[:TITLE_LENGTH]


def _session(row: Row[Any], messages: tuple[Message, ...] = (), traces: tuple[str, ...] = ()) -> Session:
    return Session(
        row.id, row.owner, row.started_at, row.updated_at, row.ended_at, row.title, row.parent, row.version,
        row.length, messages, traces,
    )  # fmt: skip
