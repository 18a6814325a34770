"""Permissions people gave for longer than one call: listed, found by session, revoked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, delete, insert, or_, select

from task.errors import NotFound
from task.store import tables
from task.store.database import Database
from task.store.records import StoredGrant
from task.store.wire import new_id, packed, unpacked

_grants = tables.grants


@dataclass(frozen=True, slots=True)
class StoredGrants:
    """The grants of the store; what one allows is the gate's business and travels as JSON data."""

    database: Database
    clock: Callable[[], float]

    async def add(
        self, owner: str, data: Mapping[str, Any], *, session_id: str | None = None, seconds: float | None = None
    ) -> StoredGrant:
        """Keep a grant, for the session or for all of the owner's, until it is revoked or `seconds` have passed."""
        now = self.clock()
        grant = StoredGrant(
            new_id("grant", 16), owner, data, now, session_id, now + seconds if seconds is not None else None
        )
        row = {
            "id": grant.grant_id, "owner": owner, "session_id": session_id, "created_at": now,
            "expires_at": grant.expires_at, "data": packed(dict(data)),
        }  # fmt: skip
        await self.database.write(lambda connection: connection.execute(insert(_grants), row))
        return grant

    async def list(self, owner: str, session_id: str | None = None) -> tuple[StoredGrant, ...]:
        """The owner's valid grants, oldest first; with a session those that count there."""
        columns = _grants.c
        query = select(_grants).where(columns.owner == owner)
        query = query.where(or_(columns.expires_at.is_(None), columns.expires_at > self.clock()))
        if session_id is not None:
            query = query.where(or_(columns.session_id.is_(None), columns.session_id == session_id))
        query = query.order_by(columns.created_at, columns.id)
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        return tuple(_grant(row) for row in rows)

    async def revoke(self, owner: str, grant_id: str) -> None:
        """Forget the grant.

        Raises:
            NotFound: the owner has no such grant.
        """
        revoked = delete(_grants).where(_grants.c.id == grant_id, _grants.c.owner == owner)
        if not await self.database.write(lambda connection: connection.execute(revoked).rowcount):
            raise NotFound(f"there is no grant {grant_id!r}")


def _grant(row: Row[Any]) -> StoredGrant:
    return StoredGrant(row.id, row.owner, unpacked(row.data), row.created_at, row.session_id, row.expires_at)
