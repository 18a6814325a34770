"""Sessions and their messages, each visible to its owner only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, update

from task.conversation.messages import Message
from task.store import session_rows as rows
from task.store import tables
from task.store.database import Database
from task.store.merge import Merged, merged
from task.store.records import Page, Run, Session

_sessions = tables.sessions


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
        now = self.clock()
        return await self.database.write(lambda connection: rows.insert_session(connection, owner, title, None, now))

    async def get(self, owner: str, session_id: str) -> Session:
        """The session with its messages and the ids of its traces, both oldest first."""
        return await self.database.read(lambda connection: rows.whole(connection, owner, session_id))

    async def messages(self, owner: str, session_id: str) -> tuple[Message, ...]:
        def work(connection: Connection) -> tuple[Message, ...]:
            rows.row_of(connection, owner, session_id)
            return rows.messages_of(connection, session_id)

        return await self.database.read(work)

    async def list(self, owner: str, limit: int = 50, cursor: str | None = None) -> Page[Session]:
        """The owner's sessions, the last used first, without their messages."""
        return await self.database.read(lambda connection: rows.page(connection, owner, limit, cursor))

    async def end(self, owner: str, session_id: str) -> Session:
        """End the session; ending it again changes nothing."""
        now = self.clock()

        def work(connection: Connection) -> Session:
            row = rows.row_of(connection, owner, session_id)
            if row.ended_at is None:
                ended = update(_sessions).where(_sessions.c.id == session_id)
                connection.execute(ended.values(ended_at=now, updated_at=now, version=row.version + 1))
            return rows.whole(connection, owner, session_id)

        return await self.database.write(work)

    async def rename(self, owner: str, session_id: str, title: str) -> None:
        def work(connection: Connection) -> None:
            rows.row_of(connection, owner, session_id)
            renamed = update(_sessions).where(_sessions.c.id == session_id)
            connection.execute(renamed.values(title=rows.short_title(title)))

        await self.database.write(work)

    async def delete(self, owner: str, session_id: str) -> None:
        """Remove the session with its messages, runs, traces, approvals and grants."""

        def work(connection: Connection) -> None:
            rows.row_of(connection, owner, session_id)
            rows.remove(connection, _sessions.c.id == session_id)

        await self.database.write(work)

    async def take_back(self, run: Run, first: int, end: int | None) -> None:
        """Remove a run of a session with its events and trace.

        The messages from `first` on go too where nothing was said after them, that is where the session ends at `end`;
        with its last run the whole session goes.
        """
        now = self.clock()
        await self.database.write(lambda connection: rows.take_back(connection, run, first, end, now))

    async def append(self, owner: str, session_id: str, messages: Sequence[Message], version: int) -> int:
        """Add messages to the session as it was at `version`; the version it has now.

        Raises:
            Conflict: somebody else has changed the session meanwhile, or it has ended.
        """
        now = self.clock()
        return await self.database.write(
            lambda connection: rows.append(connection, owner, session_id, messages, version, now)
        )

    async def branch(self, owner: str, session_id: str, keep: int) -> Session:
        """A new session that begins with the first `keep` messages of this one."""
        now = self.clock()

        def work(connection: Connection) -> Session:
            row = rows.row_of(connection, owner, session_id)
            kept = rows.messages_of(connection, session_id)[:keep]
            made = rows.insert_session(connection, owner, row.title, session_id, now)
            rows.append(connection, owner, made.session_id, kept, made.version, now)
            return rows.whole(connection, owner, made.session_id)

        return await self.database.write(work)

    async def branches(self, session_id: str) -> tuple[str, ...]:
        """The ids of the session's branches, the last used first."""
        return await self.database.read(lambda connection: rows.branches(connection, session_id))

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
        for branch_id in await self.branches(session.session_id):
            branch = await self.get(session.owner, branch_id)
            other = merged(branch.messages, sent)
            if not other.branched and branch.ended_at is None:
                return Resumed(branch, other.new)
            if other.kept > fit.kept:
                session, fit = branch, other
        made = await self.branch(session.owner, session.session_id, fit.kept)
        return Resumed(made, fit.new, branched=True)
