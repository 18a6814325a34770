"""Questions to users, each answered once, and permissions that are given for longer than one call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, func, or_, select, update

from task.conversation.inputs import Answer, new_code
from task.errors import Conflict, NotFound
from task.store import tables
from task.store.access import patiently
from task.store.database import Database, from_row, insert_new, to_row
from task.store.records import Approval, ApprovalStatus, StoredGrant, new_id, packed, unpacked

MOST_LISTED = 200
_approvals, _grants = tables.approvals, tables.grants
_IN_DATA = ("call_id", "tool", "arguments", "digest", "card", "answer")


@dataclass(frozen=True, slots=True)
class StoredApprovals:
    """The questions of the store. Methods raise `NotFound` for a question that is not the owner's."""

    database: Database
    clock: Callable[[], float]

    async def ask(self, asked: Approval) -> Approval:
        """Store the question under a code of its own, which may take half a minute; when it expires without an answer
        it means no.

        Raises:
            StoreUnavailable: the database cannot be used for as long.
            Conflict: the run has ended: another process took this one for dead.
        """
        runs = tables.runs.c
        # Locked: whoever ends the run meanwhile waits, and then finds the question.
        running = select(runs.id).where(runs.id == asked.run_id, runs.status == "running").with_for_update()

        def work(connection: Connection) -> Approval:
            if asked.run_id is not None and connection.execute(running).first() is None:
                raise Conflict(f"the run {asked.run_id} has ended; ask again")
            while True:
                coded = replace(asked, code=new_code())
                row = to_row(_approvals, coded, id=coded.approval_id, data=_data(coded))
                if insert_new(connection, _approvals, row):
                    return coded
                # An earlier visit has stored it, or else another open question of the owner has the code.
                stored = select(_approvals).where(_approvals.c.id == asked.approval_id)
                if (found := connection.execute(stored).first()) is not None:
                    return self._approval(found)

        return await patiently(lambda: self.database.write(work))

    async def coded(self, owner: str, code: str) -> Approval | None:
        """The owner's last question with this code, open or not."""
        query = select(_approvals).where(_approvals.c.owner == owner, _approvals.c.code == code)
        row = await self.database.first(query.order_by(_approvals.c.asked_at.desc()).limit(1))
        return self._approval(row) if row is not None else None

    async def get(self, owner: str, approval_id: str) -> Approval:
        query = select(_approvals).where(_approvals.c.id == approval_id, _approvals.c.owner == owner)
        row = await self.database.first(query)
        if row is None:
            raise NotFound(f"there is no approval {approval_id!r}")
        return self._approval(row)

    async def list(
        self, owner: str, *, session_id: str | None = None, run_id: str | None = None, waiting: bool = True
    ) -> tuple[Approval, ...]:
        """The owner's questions, oldest first: those that wait for an answer, or all of the last 200."""
        query = select(_approvals).where(_approvals.c.owner == owner)
        for column, value in ((_approvals.c.session_id, session_id), (_approvals.c.run_id, run_id)):
            query = query.where(column == value) if value is not None else query
        if waiting:
            query = query.where(_approvals.c.status == "waiting", _approvals.c.expires_at > self.clock())
        query = query.order_by(_approvals.c.asked_at.desc()).limit(MOST_LISTED)
        return tuple(self._approval(row) for row in reversed(await self.database.rows(query)))

    async def waiting(self) -> int:
        """How many questions of all owners wait for an answer."""
        open_ones = (_approvals.c.status == "waiting", _approvals.c.expires_at > self.clock())
        row = await self.database.first(select(func.count()).where(*open_ones))
        return int(row[0]) if row is not None else 0

    async def answer(self, owner: str, approval_id: str, answer: Answer) -> Approval:
        """Answer the question; the first answer counts.

        Raises:
            Conflict: it was answered before, or it has expired.
        """
        asked, now = await self.get(owner, approval_id), self.clock()
        status: ApprovalStatus = "allowed" if answer.allowed else "denied"
        answered = replace(asked, status=status, answer=answer, answered_at=now)
        first = update(_approvals).where(_approvals.c.id == approval_id, _approvals.c.status == "waiting")
        first = first.where(_approvals.c.expires_at > now)
        if not await self.database.execute(first.values(status=status, answered_at=now, data=_data(answered))):
            found = (await self.get(owner, approval_id)).status
            raise Conflict(f"the approval {approval_id} is {found} already")
        return answered

    async def expire(self, owner: str, approval_id: str) -> None:
        """Close the question without an answer, which means no; a closed one does not change."""
        mine = (_approvals.c.id == approval_id, _approvals.c.owner == owner, _approvals.c.status == "waiting")
        await self.database.execute(update(_approvals).where(*mine).values(status="expired"))

    def _approval(self, row: Row[Any]) -> Approval:
        late = row.status == "waiting" and row.expires_at <= self.clock()
        data = unpacked(row.data)
        data["answer"] = Answer(**data["answer"]) if data["answer"] else None
        return from_row(Approval, row, approval_id=row.id, status="expired" if late else row.status, **data)


@dataclass(frozen=True, slots=True)
class StoredGrants:
    """The grants of the store; what one allows is the gate's business and is stored as JSON data."""

    database: Database
    clock: Callable[[], float]

    async def add(
        self, owner: str, data: Mapping[str, Any], *, session_id: str | None = None, seconds: float | None = None
    ) -> StoredGrant:
        """Keep a grant, for the session or for all of the owner's, until it is revoked or `seconds` have passed."""
        now = self.clock()
        expires_at = now + seconds if seconds is not None else None
        grant = StoredGrant(new_id("grant", 16), owner, data, now, session_id, expires_at)
        row = to_row(_grants, grant, id=grant.grant_id, data=packed(data))
        await patiently(lambda: self.database.write(lambda connection: insert_new(connection, _grants, row)))
        return grant

    async def list(self, owner: str, session_id: str | None = None) -> tuple[StoredGrant, ...]:
        """The owner's valid grants, oldest first; with a session those that count there."""
        columns = _grants.c
        query = select(_grants).where(columns.owner == owner)
        query = query.where(or_(columns.expires_at.is_(None), columns.expires_at > self.clock()))
        if session_id is not None:
            query = query.where(or_(columns.session_id.is_(None), columns.session_id == session_id))
        rows = await self.database.rows(query.order_by(columns.created_at, columns.id))
        return tuple(from_row(StoredGrant, row, grant_id=row.id, data=unpacked(row.data)) for row in rows)

    async def revoke(self, owner: str, grant_id: str) -> None:
        """Remove the grant.

        Raises:
            NotFound: the owner has no such grant.
        """
        if not await self.database.execute(delete(_grants).where(_grants.c.id == grant_id, _grants.c.owner == owner)):
            raise NotFound(f"there is no grant {grant_id!r}")


def _data(asked: Approval) -> str:
    return packed({name: getattr(asked, name) for name in _IN_DATA})
