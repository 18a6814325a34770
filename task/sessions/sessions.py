"""Sessions and their messages, each visible to its owner only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from task.conversation.messages import Message
from task.errors import Conflict, NotFound
from task.sessions import tables
from task.sessions.merge import Merged, merged
from task.sessions.paging import page_from, page_of
from task.sessions.records import Page, Session
from task.sessions.store import Database, insert_new
from task.sessions.wire import message_data, message_from, new_id, packed, unpacked

TITLE_LENGTH = 200
_sessions, _messages = tables.sessions, tables.messages


@dataclass(frozen=True, slots=True)
class Resumed:
    """A session to go on with: what it holds, and what the client has added. `branched`: it is a new branch."""

    session: Session
    new: tuple[Message, ...]
    branched: bool = False


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of the store. Every method raises `NotFound` for a session that the owner does not have."""

    database: Database
    clock: Callable[[], float]

    async def start(self, owner: str, title: str = "") -> Session:
        async with self.database.writing() as connection:
            return await self._insert(connection, owner, title, None)

    async def get(self, owner: str, session_id: str) -> Session:
        """The session with its messages and the ids of its traces, both oldest first."""
        async with self.database.reading() as connection:
            row = await _row(connection, owner, session_id)
            return _session(row, await _stored(connection, session_id), await _traces(connection, session_id))

    async def messages(self, owner: str, session_id: str) -> tuple[Message, ...]:
        async with self.database.reading() as connection:
            await _row(connection, owner, session_id)
            return await _stored(connection, session_id)

    async def list(self, owner: str, limit: int = 50, cursor: str | None = None) -> Page[Session]:
        """The owner's sessions, the last used first, without their messages."""
        query = select(_sessions).where(_sessions.c.owner == owner)
        query = page_of(query, _sessions.c.updated_at, _sessions.c.id, limit, cursor)
        async with self.database.reading() as connection:
            rows = (await connection.execute(query)).all()
        return page_from(rows, limit, _session, lambda session: (session.updated_at, session.session_id))

    async def end(self, owner: str, session_id: str) -> Session:
        """End the session; ending it again changes nothing."""
        now = self.clock()
        async with self.database.writing() as connection:
            row = await _row(connection, owner, session_id)
            if row.ended_at is None:
                ended = update(_sessions).where(_sessions.c.id == session_id)
                await connection.execute(ended.values(ended_at=now, updated_at=now, version=row.version + 1))
            row = await _row(connection, owner, session_id)
            return _session(row, await _stored(connection, session_id))

    async def rename(self, owner: str, session_id: str, title: str) -> None:
        async with self.database.writing() as connection:
            await _row(connection, owner, session_id)
            renamed = update(_sessions).where(_sessions.c.id == session_id)
            await connection.execute(renamed.values(title=_title(title)))

    async def delete(self, owner: str, session_id: str) -> None:
        """Remove the session with its messages, runs, traces, approvals and grants."""
        async with self.database.writing() as connection:
            await _row(connection, owner, session_id)
            await remove(connection, _sessions.c.id == session_id)

    async def append(self, owner: str, session_id: str, messages: Sequence[Message], version: int) -> int:
        """Add messages to the session as it was at `version`; the version it has now.

        Raises:
            Conflict: somebody else has changed the session meanwhile, or it has ended.
        """
        async with self.database.writing() as connection:
            return await append(connection, owner, session_id, messages, version, self.clock())

    async def branch(self, owner: str, session_id: str, keep: int) -> Session:
        """A new session that begins with the first `keep` messages of this one."""
        async with self.database.writing() as connection:
            row = await _row(connection, owner, session_id)
            kept = (await _stored(connection, session_id))[:keep]
            made = await self._insert(connection, owner, row.title, session_id)
            version = await append(connection, owner, made.session_id, kept, made.version, self.clock())
            row = await _row(connection, owner, made.session_id)
        return _session(row, kept) if version else made

    async def resume(self, owner: str, session_id: str, sent: Sequence[Message]) -> Resumed:
        """The session, or the branch of it, that the client's messages continue.

        Where they continue none of them, a branch is made from the one that shares most with them.
        """
        session = await self.get(owner, session_id)
        fit = merged(session.messages, sent)
        if not fit.branched:
            return Resumed(session, fit.new)
        return await self._on_a_branch(session, fit, sent)

    async def _on_a_branch(self, session: Session, fit: Merged, sent: Sequence[Message]) -> Resumed:
        for branch_id in await self._branches(session.session_id):
            branch = await self.get(session.owner, branch_id)
            other = merged(branch.messages, sent)
            if not other.branched and branch.ended_at is None:
                return Resumed(branch, other.new)
            if other.kept > fit.kept:
                session, fit = branch, other
        made = await self.branch(session.owner, session.session_id, fit.kept)
        return Resumed(made, fit.new, branched=True)

    async def _branches(self, session_id: str) -> tuple[str, ...]:
        query = select(_sessions.c.id).where(_sessions.c.parent == session_id).order_by(_sessions.c.updated_at.desc())
        async with self.database.reading() as connection:
            return tuple(row.id for row in await connection.execute(query.limit(20)))

    async def _insert(self, connection: AsyncConnection, owner: str, title: str, parent: str | None) -> Session:
        now = self.clock()
        while True:
            made = Session(new_id("sess"), owner, now, now, title=_title(title), parent=parent)
            row = {"id": made.session_id, "owner": owner, "title": made.title, "parent": parent}
            if await insert_new(connection, _sessions, {**row, "started_at": now, "updated_at": now}):
                return made


async def append(
    connection: AsyncConnection, owner: str, session_id: str, messages: Sequence[Message], version: int, now: float
) -> int:
    """Add messages inside a transaction; see `Sessions.append`."""
    length = await _claim(connection, owner, session_id, version, len(messages), now)
    await write(connection, session_id, length, messages)
    return version + 1


async def write(connection: AsyncConnection, session_id: str, position: int, messages: Sequence[Message]) -> None:
    """Write messages from `position` on; the session's row is not touched."""
    rows = [
        {"session_id": session_id, "position": number, "data": packed(message_data(message))}
        for number, message in enumerate(messages, position)
    ]
    if rows:
        await connection.execute(insert(_messages), rows)


async def remove(connection: AsyncConnection, which: ColumnElement[bool]) -> int:
    """Remove sessions with all that belongs to them; how many there were."""
    gone = select(_sessions.c.id).where(which)
    for table in (tables.traces, tables.approvals, tables.grants):
        await connection.execute(delete(table).where(table.c.session_id.in_(gone)))
    return (await connection.execute(delete(_sessions).where(which))).rowcount


async def _claim(connection: AsyncConnection, owner: str, session_id: str, version: int, more: int, now: float) -> int:
    columns = _sessions.c
    claim = update(_sessions).where(
        columns.id == session_id, columns.owner == owner, columns.version == version, columns.ended_at.is_(None)
    )
    values = {"version": version + 1, "updated_at": now, "length": columns.length + more}
    claimed = (await connection.execute(claim.values(values).returning(columns.length))).first()
    if claimed is not None:
        return claimed.length - more
    row = await _row(connection, owner, session_id)
    if row.ended_at is not None:
        raise Conflict(f"the session {session_id} has ended; start another one")
    raise Conflict(f"the session {session_id} was changed by another request meanwhile; read it and try again")


async def _row(connection: AsyncConnection, owner: str, session_id: str) -> Row[Any]:
    query = select(_sessions).where(_sessions.c.id == session_id, _sessions.c.owner == owner)
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound(f"there is no session {session_id!r}")
    return row


async def _stored(connection: AsyncConnection, session_id: str) -> tuple[Message, ...]:
    query = select(_messages.c.data).where(_messages.c.session_id == session_id).order_by(_messages.c.position)
    return tuple(message_from(unpacked(row.data)) for row in await connection.execute(query))


async def _traces(connection: AsyncConnection, session_id: str) -> tuple[str, ...]:
    columns = tables.traces.c
    query = select(columns.id).where(columns.session_id == session_id).order_by(columns.started_at, columns.id)
    return tuple(row.id for row in await connection.execute(query))


def _session(row: Row[Any], messages: tuple[Message, ...] = (), traces: tuple[str, ...] = ()) -> Session:
    return Session(
        row.id, row.owner, row.started_at, row.updated_at, row.ended_at, row.title, row.parent, row.version,
        row.length, messages, traces,
    )  # fmt: skip


def _title(text: str) -> str:
    return " ".join(text.replace("\0", " ").split())[:TITLE_LENGTH]
