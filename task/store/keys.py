"""API keys, stored as hashes; of requests, prompts and sign-ins, each with an owner; the buckets of rate limits."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from cachetools import TTLCache
from sqlalchemy import Connection, delete, func, insert, select, text, update

from task.errors import InvalidRequest, KeyReused, NotFound
from task.shared.limits import LEAST_WAIT, MINUTE
from task.store import tables
from task.store.database import Database, from_row, insert_new, to_row
from task.store.records import ApiKey, Prompt, RequestKey, new_id

PREFIX = "dga-"
CACHED_SECONDS = 2.0  # how long another process may still accept a key that was revoked here
MOST_CACHED = 1000
MAX_OWNER = 100
MOST_PROMPTS = 200
REQUEST_KEY_SECONDS = 86_400.0  # how long a client may send a request again under its name
KEY_REUSED = "this Idempotency-Key was used for another request; choose a new one"

# Every request takes one: on a server the statement is its own transaction and does not wait for the disk. No row is
# returned when the bucket would be full again later than in a minute.
_NOW, _EACH = "CAST(:now AS float8)", "CAST(:each AS float8)"
_TAKE = (
    f"INSERT INTO counters AS c (name, ready_at) SELECT :name, {_NOW} + {_EACH} {{source}} "
    f"ON CONFLICT (name) DO UPDATE SET ready_at = {{greatest}}(c.ready_at, {_NOW}) + {_EACH} "
    f"WHERE c.ready_at + {_EACH} - {_NOW} <= {MINUTE + LEAST_WAIT} RETURNING ready_at"
)
_OF_SQLITE = {"greatest": "MAX", "source": "WHERE true"}
_OF_SERVER = {"greatest": "GREATEST", "source": "FROM set_config('synchronous_commit', 'off', true)"}
_keys, _prompts, _requests, _sealed = tables.keys, tables.prompts, tables.request_keys, tables.sealed_texts


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of the store."""

    database: Database
    clock: Callable[[], float]
    _verified: TTLCache[str, ApiKey] = field(default_factory=lambda: TTLCache(MOST_CACHED, CACHED_SECONDS))

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
        digest = _digest(secret)
        if (known := self._verified.get(digest)) is not None:
            return known
        query = select(_keys).where(_keys.c.digest == digest, _keys.c.revoked_at.is_(None))
        if (row := await self.database.first(query)) is None:
            return None
        found = self._verified[digest] = from_row(ApiKey, row, key_id=row.id)
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


def run_of(connection: Connection, owner: str, key: RequestKey, now: float) -> str | None:
    """The run for which the key of a request stands. Raises `KeyReused`: it came with another request."""
    mine = (_requests.c.owner == owner, _requests.c.name == key.name)
    valid = _requests.c.created_at >= now - REQUEST_KEY_SECONDS
    row = connection.execute(select(_requests).where(*mine, valid)).first()
    if row is not None and row.digest != key.digest:
        raise KeyReused(KEY_REUSED)
    return row.run_id if row is not None else None


def claimed(connection: Connection, owner: str, key: RequestKey, run_id: str, now: float) -> str:
    """Let the key stand for this run, unless it does for one: the run that it stands for. Raises as `run_of`."""
    # Of two requests with one key that come at once, the second finds the first one's run here.
    outdated = _requests.c.created_at < now - REQUEST_KEY_SECONDS
    connection.execute(delete(_requests).where(_requests.c.owner == owner, _requests.c.name == key.name, outdated))
    row = {"owner": owner, "name": key.name, "digest": key.digest, "run_id": run_id, "created_at": now}
    insert_new(connection, _requests, row)
    return run_of(connection, owner, key, now) or run_id


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
            connection.execute(delete(_prompts).where(_prompts.c.owner == owner, _prompts.c.name == prompt.name))
            count = select(func.count()).select_from(_prompts).where(_prompts.c.owner == owner)
            if (connection.scalar(count) or 0) >= MOST_PROMPTS:
                raise InvalidRequest(f"there are {MOST_PROMPTS} saved prompts; delete one first")
            # Of two requests that save one name at once, the first counts.
            insert_new(connection, _prompts, {"owner": owner, "name": prompt.name, "text": prompt.text})

        await self.database.write(work)

    async def delete(self, owner: str, name: str) -> None:
        """Raises: NotFound: the owner has no such prompt."""
        if not await self.database.execute(delete(_prompts).where(_prompts.c.owner == owner, _prompts.c.name == name)):
            raise NotFound(f"there is no prompt {name!r}")


@dataclass(frozen=True, slots=True)
class SealedTexts:
    """What users own, sealed by those who keep it here under a name: sign-ins at servers, and memories."""

    database: Database

    async def get(self, owner: str, name: str) -> str | None:
        mine = (_sealed.c.owner == owner, _sealed.c.name == name)
        row = await self.database.first(select(_sealed.c.data).where(*mine))
        return row.data if row is not None else None

    async def put(self, owner: str, name: str, data: str, before: str | None) -> bool:
        """Store the data in place of those `before`; False where something else is stored."""
        row = {"owner": owner, "name": name, "data": data}
        mine = (_sealed.c.owner == owner, _sealed.c.name == name, _sealed.c.data == before)

        def work(connection: Connection) -> bool:
            if before is None:
                return insert_new(connection, _sealed, row)
            return bool(connection.execute(update(_sealed).where(*mine).values(data=data)).rowcount)

        return await self.database.write(work)

    async def delete(self, owner: str, name: str) -> bool:
        """Whether there was something to delete."""
        mine = (_sealed.c.owner == owner, _sealed.c.name == name)
        return bool(await self.database.execute(delete(_sealed).where(*mine)))


@dataclass(frozen=True, slots=True)
class StoredBuckets:
    """The buckets of rate limits that all processes of the database share."""

    database: Database
    clock: Callable[[], float]

    async def take(self, name: str, per_minute: int) -> float | None:
        """Take one request of `per_minute` out of the bucket; when it is empty, the seconds until it is not."""
        is_sqlite, now, each = self.database.is_sqlite, self.clock(), MINUTE / per_minute
        take = text(_TAKE.format(**(_OF_SQLITE if is_sqlite else _OF_SERVER)))
        ready_at = select(tables.counters.c.ready_at).where(tables.counters.c.name == name)

        def work(connection: Connection) -> float | None:
            if connection.execute(take, {"name": name, "now": now, "each": each}).first() is not None:
                return None
            return max((connection.scalar(ready_at) or 0.0) + each - now - MINUTE, LEAST_WAIT)

        return await (self.database.write(work) if is_sqlite else self.database.read(work))


def _digest(secret: str) -> str:
    # A plain hash is enough: 256 random bits cannot be guessed, however fast the hash is.
    return sha256(secret.encode("utf-8", "replace")).hexdigest()
