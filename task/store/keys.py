"""API keys, stored as hashes, and saved prompts, each with an owner; the buckets by which requests are counted."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from sqlalchemy import Connection, delete, func, insert, select, text, update

from task.errors import InvalidRequest, NotFound
from task.shared.limits import waiting_time
from task.store import tables
from task.store.database import Database, from_row, insert_new, to_row
from task.store.records import ApiKey, Prompt, new_id

PREFIX = "dga-"
CACHED_SECONDS = 2.0  # how long another process may still accept a key that was revoked here
MOST_CACHED = 1000
MAX_OWNER = 100
MOST_PROMPTS = 200

# The level is what is left; it fills by :rate a second up to :most. No row is returned when less than one is left.
_MOST, _NOW = "CAST(:most AS float8)", "CAST(:now AS float8)"
_FILLED = f"c.level + {{greatest}}({_NOW} - c.filled_at, 0) * CAST(:rate AS float8)"
# Every request takes one: on a server the statement is its own transaction and does not wait for the disk.
_TAKE = (
    f"INSERT INTO counters AS c (name, level, filled_at) SELECT :name, {_MOST} - 1, {_NOW} {{source}} "
    f"ON CONFLICT (name) DO UPDATE SET filled_at = {{greatest}}(c.filled_at, {_NOW}), "
    f"level = {{least}}({_MOST}, {_FILLED}) - 1 WHERE {{least}}({_MOST}, {_FILLED}) >= 1 RETURNING level"
)
_LEFT = f"SELECT {_FILLED} FROM counters AS c WHERE name = :name"  # noqa: S608
_OF_SQLITE = {"greatest": "MAX", "least": "MIN", "source": "WHERE true"}
_OF_SERVER = {
    "greatest": "GREATEST",
    "least": "LEAST",
    "source": "FROM set_config('synchronous_commit', 'off', true)",
}
_keys, _prompts = tables.keys, tables.prompts


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of the store."""

    database: Database
    clock: Callable[[], float]
    _verified: dict[str, tuple[float, ApiKey]] = field(default_factory=dict[str, tuple[float, ApiKey]])

    async def create(self, owner: str, label: str = "", *, operator: bool = False) -> tuple[ApiKey, str]:
        """A new key and its secret, which is not kept.

        Raises:
            InvalidRequest: the owner cannot be part of a file path and a log line.
        """
        if not 1 <= len(owner) <= MAX_OWNER or not all(letter.isalnum() or letter in "-_.@" for letter in owner):
            raise InvalidRequest(f"an owner is 1 to {MAX_OWNER} letters, digits, '-', '_', '.' or '@'")
        if owner.startswith("."):
            raise InvalidRequest("an owner does not begin with a dot")
        secret = PREFIX + secrets.token_urlsafe(32)
        key = ApiKey(new_id("key"), owner, label, operator, self.clock())
        await self.database.execute(insert(_keys), to_row(_keys, key, id=key.key_id, digest=_digest(secret)))
        return key, secret

    async def verify(self, secret: str) -> ApiKey | None:
        """The valid key that has this secret."""
        digest, now = _digest(secret), self.clock()
        until, known = self._verified.get(digest, (0.0, None))
        if known is not None and now < until:
            return known
        query = select(_keys).where(_keys.c.digest == digest, _keys.c.revoked_at.is_(None))
        row = await self.database.first(query)
        if row is None:
            self._verified.pop(digest, None)
            return None
        if len(self._verified) >= MOST_CACHED:
            self._verified.clear()
        found = from_row(ApiKey, row, key_id=row.id)
        self._verified[digest] = (now + CACHED_SECONDS, found)
        return found

    async def revoke(self, key_id: str) -> None:
        """Make the key invalid permanently.

        Raises:
            NotFound: there is no such key, or it was revoked before.
        """
        valid = update(_keys).where(_keys.c.id == key_id, _keys.c.revoked_at.is_(None))
        if not await self.database.execute(valid.values(revoked_at=self.clock())):
            raise NotFound(f"there is no valid key {key_id!r}")
        self._verified.clear()

    async def list(self) -> tuple[ApiKey, ...]:
        """All keys, oldest first, revoked ones too."""
        query = select(_keys).order_by(_keys.c.created_at, _keys.c.id)
        return tuple(from_row(ApiKey, row, key_id=row.id) for row in await self.database.rows(query))


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


@dataclass(frozen=True, slots=True)
class StoredBuckets:
    """The buckets of rate limits that all processes of the database share."""

    database: Database
    clock: Callable[[], float]

    async def take(self, name: str, per_minute: int) -> float | None:
        """Take one request of `per_minute` out of the bucket; when it is empty, the seconds until it is not."""
        is_sqlite = self.database.is_sqlite
        words = _OF_SQLITE if is_sqlite else _OF_SERVER
        values = {"name": name, "most": float(per_minute), "rate": per_minute / 60, "now": self.clock()}

        def work(connection: Connection) -> float | None:
            if connection.execute(text(_TAKE.format(**words)), values).first() is not None:
                return None
            return waiting_time(connection.scalar(text(_LEFT.format(**words)), values) or 0.0, per_minute)

        return await (self.database.write(work) if is_sqlite else self.database.read(work))


def _digest(secret: str) -> str:
    # A plain hash is enough: 256 random bits cannot be guessed, however fast the hash is.
    return sha256(secret.encode("utf-8", "replace")).hexdigest()
