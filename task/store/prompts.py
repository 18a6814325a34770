"""The prompts that users save for themselves, by name."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, update

from task.errors import InvalidRequest, NotFound
from task.store import tables
from task.store.database import Database, insert_new
from task.store.records import Prompt

MOST_PROMPTS = 200
_prompts = tables.prompts


@dataclass(frozen=True, slots=True)
class Prompts:
    """The saved prompts of the store, each visible to its owner only."""

    database: Database

    async def list(self, owner: str) -> tuple[Prompt, ...]:
        """The owner's prompts by name."""
        query = select(_prompts.c.name, _prompts.c.text).where(_prompts.c.owner == owner).order_by(_prompts.c.name)
        return tuple(Prompt(row.name, row.text) for row in await self.database.rows(query))

    async def save(self, owner: str, prompt: Prompt) -> None:
        """Save the prompt in place of the one of that name.

        Raises:
            InvalidRequest: the owner has as many prompts as there may be.
        """

        def work(connection: Connection) -> None:
            named = update(_prompts).where(_prompts.c.owner == owner, _prompts.c.name == prompt.name)
            if connection.execute(named.values(text=prompt.text)).rowcount:
                return
            count = select(func.count()).select_from(_prompts).where(_prompts.c.owner == owner)
            if (connection.scalar(count) or 0) >= MOST_PROMPTS:
                raise InvalidRequest(f"there are {MOST_PROMPTS} saved prompts; delete one first")
            if not insert_new(connection, _prompts, {"owner": owner, "name": prompt.name, "text": prompt.text}):
                connection.execute(named.values(text=prompt.text))  # saved by another request since

        await self.database.write(work)

    async def delete(self, owner: str, name: str) -> None:
        """Raises: NotFound: the owner has no such prompt."""
        if not await self.database.execute(delete(_prompts).where(_prompts.c.owner == owner, _prompts.c.name == name)):
            raise NotFound(f"there is no prompt {name!r}")
