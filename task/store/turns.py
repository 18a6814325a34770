"""Turns of conversations that callers keep themselves, as the model had them: callers are shown less of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from task.conversation.messages import Message, message_from
from task.store import tables
from task.store.database import Database, insert_new
from task.store.records import packed, unpacked
from task.store.writer import Writer

_turns = tables.turns


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """`messages` stand for what the caller's conversation has from the place `start` on."""

    start: int
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of the store, by their owner and a key of at most 64 characters."""

    database: Database
    writer: Writer
    clock: Callable[[], float]

    def keep(self, owner: str, key: str, turn: StoredTurn, session_id: str | None = None) -> None:
        """Queue the turn, in the place of an earlier one; `Runs.finish` returns after it is on disk.

        It is removed with the session, where it has one.
        """
        data = packed([turn.start, *(message.as_stored() for message in turn.messages)])
        row = {"id": key, "owner": owner, "session_id": session_id, "kept_at": self.clock(), "data": data}

        def work(connection: Connection) -> None:
            connection.execute(delete(_turns).where(_turns.c.id == key, _turns.c.owner == owner))
            insert_new(connection, _turns, row)

        self.writer.put(work)

    async def find(self, owner: str, keys: Collection[str]) -> dict[str, StoredTurn]:
        """The owner's turns with these keys."""
        query = select(_turns.c.id, _turns.c.data).where(_turns.c.id.in_(keys), _turns.c.owner == owner)
        found: dict[str, StoredTurn] = {}
        for row in await self.database.rows(query):
            start, *messages = unpacked(row.data)
            found[row.id] = StoredTurn(start, tuple(map(message_from, messages)))
        return found
