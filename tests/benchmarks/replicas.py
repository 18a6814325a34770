"""Agents that share a real PostgreSQL behind a real HAProxy, and what all of them have used so far."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

import asyncpg
import psutil

from task.store.access import StoreOptions
from task.store.store import open_store
from tests.benchmarks import processes
from tests.support.balancer import balancer
from tests.support.ports import free_port
from tests.support.postgres_server import postgres_server

# WAL as an ordinary server writes it; the statistics count what reaches the server, BEGIN and COMMIT included.
POSTGRES = (
    "-c", "full_page_writes=on", "-c", "shared_buffers=128MB", "-c", "max_connections=200",
    "-c", "shared_preload_libraries=pg_stat_statements", "-c", "pg_stat_statements.track_utility=on",
)  # fmt: skip
NO_LIMIT = "1000000"
_COUNTS = """
SELECT coalesce(sum(calls), 0)::bigint AS statements,
  coalesce(sum(calls) FILTER (WHERE query ILIKE 'commit%'), 0)::bigint AS commits,
  coalesce(sum(rows) FILTER (WHERE query ~* '^(insert|update|delete)'), 0)::bigint AS rows,
  pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal,
  pg_database_size(current_database()) AS size
FROM pg_stat_statements WHERE query NOT ILIKE '%pg_stat_statements%'
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one piece of work: CPU seconds of agents, of the processes they start, of PostgreSQL and of the balancer;
    statements that PostgreSQL received, commits, written rows; bytes."""

    agent: float = 0.0
    children: float = 0.0
    postgres: float = 0.0
    balancer: float = 0.0
    statements: float = 0.0
    commits: float = 0.0
    rows: float = 0.0
    wal: float = 0.0
    size: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    def __sub__(self, other: Cost) -> Cost:
        return self + other * -1

    def __mul__(self, count: float) -> Cost:
        return Cost(*(getattr(self, item.name) * count for item in fields(self)))

    def __truediv__(self, count: float) -> Cost:
        return self * (1 / count)

    @property
    def cpu(self) -> float:
        """CPU seconds of everything."""
        return self.agent + self.children + self.postgres + self.balancer


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each figure."""
    return Cost(*(statistics.median(getattr(cost, item.name) for cost in costs) for item in fields(Cost)))


@dataclass(frozen=True, slots=True)
class Replicas:
    """`port` is the balanced address; `store_url` leads to the database of all agents."""

    port: int
    agents: Sequence[processes.Application]
    store_url: str
    postgres: int
    balancer: int
    counters: asyncpg.Connection

    async def used(self) -> Cost:
        counts = await self.counters.fetchrow(_COUNTS)
        assert counts is not None
        return Cost(
            sum(agent.cpu() for agent in self.agents), sum(cpu_of(agent.pid) for agent in self.agents),
            cpu_of(self.postgres, itself=True), cpu_of(self.balancer, itself=True), **dict(counts),
        )  # fmt: skip

    async def keys(self, count: int) -> list[str]:
        """So many new keys of the HTTP API, each of another owner."""
        store = await open_store(StoreOptions(self.store_url, chores=False))
        try:
            return [(await store.keys.create(f"person-{number}"))[1] for number in range(count)]
        finally:
            await store.close()


@asynccontextmanager
async def replicas(folder: Path, count: int, upstream: int, **settings: str) -> AsyncGenerator[Replicas]:
    """`count` agents before that upstream, with a PostgreSQL and an HAProxy of their own."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(postgres_server(*POSTGRES))
        shared = {
            "AGENT_STORE__URL": server.url, "AGENT_STATE_SECRET": "the replicas agree on it",
            "AGENT_HTTP__MODE": "keys", "AGENT_HTTP__REQUESTS_PER_MINUTE": NO_LIMIT,
            "AGENT_HTTP__RUNS_PER_CALLER": NO_LIMIT,
        }  # fmt: skip
        agents: list[processes.Application] = []
        for number in range(count):
            home = folder / f"agent-{number}"
            home.mkdir(parents=True)
            running = processes.application(upstream, home, core=None, **{**shared, **settings})
            agents.append(await stack.enter_async_context(running))
        port, proxy = free_port(), folder / "balancer"
        proxy.mkdir()
        urls = (f"http://127.0.0.1:{agent.port}" for agent in agents)
        running_balancer = await stack.enter_async_context(balancer(proxy, port, *urls))
        counters = await asyncpg.connect(server.url)
        stack.push_async_callback(counters.close)
        await counters.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        await asyncio.gather(*(agent.at_rest() for agent in agents))
        assert server.process is not None
        yield Replicas(port, agents, server.url, server.process.pid, running_balancer.pid, counters)


def cpu_of(pid: int, *, itself: bool = False) -> float:
    """CPU seconds of all processes that this one has started, the ended ones included."""
    process = psutil.Process(pid)
    ended = process.cpu_times()
    seconds = ended.children_user + ended.children_system + (ended.user + ended.system if itself else 0.0)
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
