"""Where the vectors of documents are kept and compared: in memory with copies in a Redis, or in PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from task.search.ranking import Dense, StoredVectors, dense_index, similarities
from task.search.readings import Readings

if TYPE_CHECKING:
    import numpy as np
    from asyncpg import Pool
    from asyncpg.connection import Connection
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

REST_SECONDS = 15.0  # how long a database that failed is left alone
ANSWER_SECONDS = 10
KEEPING_SECONDS = 120.0  # for the vectors of a very long document
CONNECTIONS = 4
_CLEANED = 100  # expired indexes that one new index makes room for
_ROWS_PER_STEP = 200  # encoded at a time, so that the event loop is not blocked

_LOCK = "select pg_advisory_xact_lock(hashtextextended($1, 0))"
# The number is that of the layout: another layout has tables of another name.
_TABLES = """\
create table if not exists dial_agent_rag_index_2 (
    id bigint generated always as identity primary key,
    key text not null unique,
    dimensions integer not null,
    chunks integer not null,
    expires_at timestamptz not null
);
create index if not exists dial_agent_rag_expiry_2 on dial_agent_rag_index_2 (expires_at);
create table if not exists dial_agent_rag_vector_2 (
    index_id bigint not null references dial_agent_rag_index_2 on delete cascade,
    place integer not null,
    embedding vector not null,
    primary key (index_id, place)
);
"""
_FIND = "select id, dimensions from dial_agent_rag_index_2 where key = $1 and chunks = $2 and expires_at > now()"
_INSERT = """\
insert into dial_agent_rag_index_2 (key, dimensions, chunks, expires_at)
values ($1, $2, $3, now() + make_interval(secs => $4)) returning id"""
_CLEAN = """\
delete from dial_agent_rag_index_2 where id in
(select id from dial_agent_rag_index_2 where expires_at < now() limit $1 for update skip locked)"""
# Every chunk is compared: the scores by words are added to all of them, and an approximate index would lose some.
_SIMILARITIES = """\
select array_agg((-(embedding <#> $2))::real order by place) from dial_agent_rag_vector_2 where index_id = $1"""

T = TypeVar("T")


class VectorsGone(Exception):
    """The vectors are no longer where the index left them and have to be made again, or their database is away."""


class MemoryVectors:
    """FAISS indexes in this process; what was made is also kept in the Redis of `readings`, where there is one.

    Nothing fails but as documented.
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    async def find(self, key: str, chunks: int) -> Dense | None:
        """The vectors of a document with so many chunks, if they are kept."""
        if (content := await self._readings.get(f"index:{key}")) is None:
            return None
        import numpy as np

        return await asyncio.to_thread(lambda: dense_index(np.frombuffer(content, dtype="<f4").reshape(chunks, -1)))

    async def keep(self, key: str, rows: NDArray[np.float32]) -> Dense:
        """Keep the normalised rows of a document's chunks."""
        await self._readings.put(f"index:{key}", lambda: rows.astype("<f4").tobytes())
        return await asyncio.to_thread(dense_index, rows)

    async def drop(self, key: str, dimensions: int) -> None:
        """Forget a document's vectors of this length."""
        await self._readings.drop(f"index:{key}")

    async def similarities(self, dense: Dense, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """The cosine of the question's vector and of each chunk's, in the order of the chunks.

        Raises:
            VectorsGone: there are no such vectors any more, or their database cannot be reached.
        """
        if isinstance(dense, StoredVectors):
            raise VectorsGone
        return await asyncio.to_thread(similarities, dense, vector)

    async def close(self) -> None:
        return None


class PgVectors(MemoryVectors):
    """Vectors in the PostgreSQL at `url` for `seconds`; while it cannot be used, in memory.

    The tables are made when they are missing, and the extension where the role may create it.
    """

    def __init__(
        self,
        url: str,
        readings: Readings,
        *,
        seconds: int,
        answer_seconds: int = ANSWER_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(readings)
        self._url = url
        self._seconds = seconds
        self._patience = answer_seconds
        self._clock = clock
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._resting_until = float("-inf")

    async def find(self, key: str, chunks: int) -> Dense | None:
        try:
            row = await self._run(lambda database: database.fetchrow(_FIND, key, chunks))
        except VectorsGone:
            return await super().find(key, chunks)
        return StoredVectors(row["id"], row["dimensions"]) if row is not None else None

    async def keep(self, key: str, rows: NDArray[np.float32]) -> Dense:
        try:
            return await self._run(lambda database: self._kept(database, key, rows), KEEPING_SECONDS)
        except VectorsGone:
            return await super().keep(key, rows)

    async def drop(self, key: str, dimensions: int) -> None:
        await super().drop(key, dimensions)
        statement = "delete from dial_agent_rag_index_2 where key = $1 and dimensions = $2"
        with suppress(VectorsGone):
            await self._run(lambda database: database.execute(statement, key, dimensions))

    async def similarities(self, dense: Dense, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        if not isinstance(dense, StoredVectors):
            return await super().similarities(dense, vector)
        import numpy as np

        found = await self._run(lambda database: database.fetchval(_SIMILARITIES, dense.id, vector.reshape(-1)))
        if found is None:
            raise VectorsGone
        return np.asarray(found, dtype=np.float32)

    async def fault(self) -> str:
        """Why the database cannot be used, for operators; empty where it can."""
        try:
            await self._run(lambda database: database.fetchval(_FIND, "", 0))
        except VectorsGone as reason:
            return str(reason)
        return ""

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def _run(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        import asyncpg

        if self._clock() < self._resting_until:
            raise VectorsGone
        try:
            async with asyncio.timeout(seconds or self._patience):
                pool = await self._opened()
                connection: Any = await pool.acquire(timeout=self._patience)
                try:
                    return await work(connection)
                except BaseException:
                    connection.terminate()  # a server that is silent would be waited for at the release
                    raise
                finally:
                    await pool.release(connection, timeout=self._patience)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, ValueError) as error:
            if self._clock() >= self._resting_until:  # of several that fail together, one is logged
                reason = f"{type(error).__name__} {getattr(error, 'sqlstate', None) or ''}".strip()
                logger.warning("AGENT_RAG__INDEX_URL cannot be used (%s); documents are indexed in memory", reason)
            self._resting_until = self._clock() + REST_SECONDS
            raise VectorsGone(str(error) or type(error).__name__) from error

    async def _opened(self) -> Pool:
        import asyncpg

        async with self._opening:
            if self._pool is None:
                connection = await asyncpg.connect(self._url, timeout=self._patience)
                try:
                    if not await connection.fetchval("select to_regclass('dial_agent_rag_vector_2') is not null"):
                        async with connection.transaction():
                            await connection.execute(_LOCK, "dial_agent_rag")  # of agents that start, one makes them
                            await connection.execute("create extension if not exists vector")
                            await connection.execute(_TABLES)
                finally:
                    connection.terminate()
                self._pool = await asyncpg.create_pool(
                    self._url, min_size=0, max_size=CONNECTIONS, timeout=self._patience, init=_with_vectors
                )
            return self._pool

    async def _kept(self, database: Connection, key: str, rows: NDArray[np.float32]) -> StoredVectors:
        chunks, dimensions = rows.shape
        async with database.transaction():
            await database.execute(_LOCK, key)
            if (kept := await database.fetchrow(_FIND, key, chunks)) is not None and kept["dimensions"] == dimensions:
                return StoredVectors(kept["id"], dimensions)  # another agent's, in which searches may be on their way
            await database.execute("delete from dial_agent_rag_index_2 where key = $1", key)
            number: Any = await database.fetchval(_INSERT, key, dimensions, chunks, self._seconds)
            for start in range(0, chunks, _ROWS_PER_STEP):
                places = range(start, min(start + _ROWS_PER_STEP, chunks))
                records = ((number, place, rows[place]) for place in places)
                await database.copy_records_to_table("dial_agent_rag_vector_2", records=records)
            await database.execute(_CLEAN, _CLEANED)
        return StoredVectors(number, dimensions)


async def _with_vectors(connection: Connection) -> None:
    from pgvector.asyncpg import register_vector

    schema = await connection.fetchval(
        "select nspname from pg_extension join pg_namespace on pg_namespace.oid = extnamespace where extname = 'vector'"
    )
    await register_vector(connection, schema=schema or "public")
