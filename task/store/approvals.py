"""Questions to people: asked by a run, answered once, here or by another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, insert, select, update

from task.errors import Conflict, NotFound
from task.store import tables
from task.store.database import Database
from task.store.records import Answer, Approval, ApprovalStatus
from task.store.wire import new_id, packed, unpacked

POLL_SECONDS = 0.2
_approvals = tables.approvals
_COLUMNS = ("owner", "session_id", "run_id", "status", "asked_at", "expires_at", "answered_at")


@dataclass(frozen=True, slots=True)
class Approvals:
    """The questions of the store. Methods raise `NotFound` for a question that is not the owner's."""

    database: Database
    clock: Callable[[], float]

    async def ask(
        self,
        owner: str,
        *,
        call_id: str,
        tool: str,
        arguments: Mapping[str, Any],
        digest: str,
        card: Mapping[str, Any],
        seconds: float,
        session_id: str | None = None,
        run_id: str | None = None,
        question: str = "",
        conversation: str = "",
    ) -> Approval:
        """Put the question; after `seconds` without an answer it expires, which is a no."""
        now = self.clock()
        asked = Approval(
            new_id("appr", 16), owner, call_id, tool, arguments, digest, now, now + seconds, card, session_id, run_id,
            question=question, conversation=conversation,
        )  # fmt: skip
        row = {"id": asked.approval_id, "data": _data(asked), **{name: getattr(asked, name) for name in _COLUMNS}}
        await self.database.write(lambda connection: connection.execute(insert(_approvals), row))
        return asked

    async def get(self, owner: str, approval_id: str) -> Approval:
        query = select(_approvals).where(_approvals.c.id == approval_id, _approvals.c.owner == owner)
        row = await self.database.read(lambda connection: connection.execute(query).first())
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
        query = query.order_by(_approvals.c.asked_at.desc()).limit(200)
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        return tuple(self._approval(row) for row in reversed(rows))

    async def answer(self, owner: str, approval_id: str, answer: Answer) -> Approval:
        """Answer the question; the first answer counts.

        Raises:
            Conflict: it was answered before, or it has expired.
        """
        asked = await self.get(owner, approval_id)
        status: ApprovalStatus = "allowed" if answer.allowed else "denied"
        answered = replace(asked, status=status, answer=answer, answered_at=self.clock())
        first = update(_approvals).where(_approvals.c.id == approval_id, _approvals.c.status == "waiting")
        first = first.where(_approvals.c.expires_at > self.clock())
        values = {"status": status, "answered_at": answered.answered_at, "data": _data(answered)}
        first = first.values(values)
        if not await self.database.write(lambda connection: connection.execute(first).rowcount):
            found = (await self.get(owner, approval_id)).status
            raise Conflict(f"the approval {approval_id} is {found} already")
        return answered

    async def wait(self, owner: str, approval_id: str) -> Approval:
        """The question with its answer, as soon as somebody has given one anywhere, or it has expired."""
        while True:
            asked = await self.get(owner, approval_id)
            if asked.status != "waiting":
                return asked
            await asyncio.sleep(min(POLL_SECONDS, max(asked.expires_at - self.clock(), 0.0)))

    def _approval(self, row: Row[Any]) -> Approval:
        data = unpacked(row.data)
        answer = Answer(**data["answer"]) if data["answer"] else None
        late = row.status == "waiting" and row.expires_at <= self.clock()
        return Approval(
            row.id, row.owner, data["call_id"], data["tool"], data["arguments"], data["digest"], row.asked_at,
            row.expires_at, data["card"], row.session_id, row.run_id, "expired" if late else row.status,
            row.answered_at, answer, data.get("question", ""), data.get("conversation", ""),
        )  # fmt: skip


def _data(asked: Approval) -> str:
    return packed({
        "call_id": asked.call_id,
        "tool": asked.tool,
        "arguments": dict(asked.arguments),
        "digest": asked.digest,
        "card": dict(asked.card),
        "answer": asked.answer.as_dict() if asked.answer else None,
        "question": asked.question,
        "conversation": asked.conversation,
    })  # fmt: skip
