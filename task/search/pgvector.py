"""Keep the vectors of documents in PostgreSQL with pgvector, for any number of agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from task.search.index_store import MemoryVectors, NewVectors, VectorsGone
from task.search.ranking import Dense, StoredVectors

if TYPE_CHECKING:
    import numpy as np
    from asyncpg import Pool
    from asyncpg.connection import Connection
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

REST_SECONDS = 15.0  # how long a database that failed is left alone
ANSWER_SECONDS = 10
KEEPING_SECONDS = 120.0  # for the vectors of a very long document
WAITING_SECONDS = 120.0  # for another agent that indexes the same document
CONNECTIONS = 4
_POLL_SECONDS = 0.5
_CLEANED = 100  # expired indexes that one new index makes room for
_ROWS_PER_STEP = 200  # encoded or decoded at a time, so that the event loop is not blocked

_LOCK = "select pg_advisory_xact_lock(hashtextextended($1, 0))"
# The number is that of the layout: another layout has tables of another name.
_TABLES = """\
create table if not exists dial_agent_rag_index_1 (
    id bigint generated always as identity primary key,
    key text not null unique,
    model text not null,
    dimensions integer not null,
    chunks integer not null,
    expires_at timestamptz not null
);
create index if not exists dial_agent_rag_expiry_1 on dial_agent_rag_index_1 (expires_at);
create table if not exists dial_agent_rag_vector_1 (
    index_id bigint not null references dial_agent_rag_index_1 on delete cascade,
    place integer not null,
    digest bytea not null,
    embedding vector not null,
    primary key (index_id, place)
);
create index if not exists dial_agent_rag_digest_1 on dial_agent_rag_vector_1 (digest);
"""
_FIND = "select id, dimensions from dial_agent_rag_index_1 where key = $1 and chunks = $2 and expires_at > now()"
_INSERT = """\
insert into dial_agent_rag_index_1 (key, model, dimensions, chunks, expires_at)
values ($1, $2, $3, $4, now() + make_interval(secs => $5)) returning id"""
_CLEAN = """\
delete from dial_agent_rag_index_1 where id in
(select id from dial_agent_rag_index_1 where expires_at < now() limit $1 for update skip locked)"""
# Every chunk is compared: the scores by words are added to all of them, and an approximate index would lose some.
_SIMILARITIES = """\
select array_agg((-(embedding <#> $2))::real order by place) from dial_agent_rag_vector_1 where index_id = $1"""
_KNOWN = """\
select distinct on (digest) digest, embedding
from dial_agent_rag_vector_1 join dial_agent_rag_index_1 on id = index_id
where model = $1 and digest = any($2) and expires_at > now() order by digest, id desc"""

T = TypeVar("T")


class Away(Exception):
    """The database cannot be used now."""


class PgVectors:
    """Vectors in the PostgreSQL at `url` for `seconds`; while it cannot be used, they are kept in `memory`.

    The tables are made when they are missing, and the extension where the role may create it.
    """

    def __init__(
        self,
        url: str,
        memory: MemoryVectors,
        *,
        seconds: int,
        rest_seconds: float = REST_SECONDS,
        answer_seconds: int = ANSWER_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._url = url
        self._memory = memory
        self._seconds = seconds
        self._rest = rest_seconds
        self._patience = answer_seconds
        self._clock = clock
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._locks = asyncio.Semaphore(CONNECTIONS)
        self._resting_until = float("-inf")

    async def find(self, key: str, chunks: int) -> Dense | None:
        try:
            row = await self._run(lambda database: database.fetchrow(_FIND, key, chunks))
        except Away:
            return await self._memory.find(key, chunks)
        return StoredVectors(row["id"], row["dimensions"]) if row is not None else None

    async def keep(self, key: str, vectors: NewVectors) -> Dense:
        try:
            return await self._run(lambda database: self._kept(database, key, vectors), KEEPING_SECONDS)
        except Away:
            return await self._memory.keep(key, vectors)

    async def drop(self, key: str, dimensions: int) -> None:
        await self._memory.drop(key, dimensions)
        statement = "delete from dial_agent_rag_index_1 where key = $1 and dimensions = $2"
        with suppress(Away):
            await self._run(lambda database: database.execute(statement, key, dimensions))

    async def similarities(self, dense: Dense, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        if not isinstance(dense, StoredVectors):
            return await self._memory.similarities(dense, vector)
        import numpy as np

        try:
            found = await self._run(lambda database: database.fetchval(_SIMILARITIES, dense.id, vector.reshape(-1)))
        except Away as error:
            raise VectorsGone from error
        if found is None:
            raise VectorsGone
        return np.asarray(found, dtype=np.float32)

    @asynccontextmanager
    async def making(self, key: str) -> AsyncGenerator[bool]:
        # A lock of the session ends with the connection, so an agent that dies leaves none behind.
        async with self._locks:
            connection: Connection | None = None
            try:
                with suppress(Away):  # then it is made without the lock, twice at worst
                    connection = await self._guarded(lambda: self._locked(key), WAITING_SECONDS + self._patience)
                yield True
            finally:
                if connection is not None:
                    connection.terminate()

    async def known(self, model: str, digests: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        found: dict[bytes, NDArray[np.float32]] = {}
        for start in range(0, len(digests), _ROWS_PER_STEP):
            some = digests[start : start + _ROWS_PER_STEP]
            try:
                rows = await self._run(lambda database, some=some: database.fetch(_KNOWN, model, some))
            except Away:
                return found | await self._memory.known(model, digests[start:])
            found |= {bytes(row["digest"]): row["embedding"].to_numpy() for row in rows}
        return found

    async def learn(self, model: str, rows: Mapping[bytes, NDArray[np.float32]]) -> None:
        """Nothing: the rows are kept with their document."""

    async def fault(self) -> str:
        """Why the database cannot be used, for operators; empty where it can."""
        try:
            await self._run(lambda database: database.fetchval(_FIND, "", 0))
        except Away as reason:
            return str(reason)
        return ""

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def _locked(self, key: str) -> Connection:
        import asyncpg

        until = self._clock() + WAITING_SECONDS
        # The server notices within a minute if this machine is gone.
        alive = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
        connection = await asyncpg.connect(
            self._url, timeout=self._patience, command_timeout=self._patience, server_settings=alive
        )
        try:
            statement = "select pg_try_advisory_lock(hashtextextended($1, 1))"
            while not await connection.fetchval(statement, key) and self._clock() < until:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _run(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        async def worked() -> T:
            pool = await self._opened()
            connection: Any = await pool.acquire(timeout=self._patience)
            try:
                return await work(connection)
            except BaseException:
                connection.terminate()  # a server that is silent would be waited for at the release
                raise
            finally:
                await pool.release(connection, timeout=self._patience)

        return await self._guarded(worked, seconds or self._patience)

    async def _guarded(self, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        import asyncpg

        if self._clock() < self._resting_until:
            raise Away
        try:
            async with asyncio.timeout(seconds):
                return await work()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, ValueError) as error:
            if self._clock() >= self._resting_until:  # of several that fail together, one is logged
                reason = f"{type(error).__name__} {getattr(error, 'sqlstate', None) or ''}".strip()
                logger.warning("AGENT_RAG__INDEX_URL cannot be used (%s); documents are indexed in memory", reason)
            self._resting_until = self._clock() + self._rest
            raise Away(str(error) or type(error).__name__) from error

    async def _opened(self) -> Pool:
        import asyncpg

        async with self._opening:
            if self._pool is None:
                connection = await asyncpg.connect(self._url, timeout=self._patience)
                try:
                    if not await connection.fetchval("select to_regclass('dial_agent_rag_vector_1') is not null"):
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

    async def _kept(self, database: Connection, key: str, vectors: NewVectors) -> StoredVectors:
        chunks, dimensions = vectors.rows.shape
        async with database.transaction():
            await database.execute(_LOCK, key)
            await database.execute("delete from dial_agent_rag_index_1 where key = $1", key)
            number: Any = await database.fetchval(_INSERT, key, vectors.model, dimensions, chunks, self._seconds)
            for start in range(0, chunks, _ROWS_PER_STEP):
                places = range(start, min(start + _ROWS_PER_STEP, chunks))
                records = ((number, place, vectors.digests[place], vectors.rows[place]) for place in places)
                await database.copy_records_to_table("dial_agent_rag_vector_1", records=records)
            await database.execute(_CLEAN, _CLEANED)
        return StoredVectors(number, dimensions)


async def _with_vectors(connection: Connection) -> None:
    from pgvector.asyncpg import register_vector

    schema = await connection.fetchval(
        "select nspname from pg_extension join pg_namespace on pg_namespace.oid = extnamespace where extname = 'vector'"
    )
    await register_vector(connection, schema=schema or "public")
