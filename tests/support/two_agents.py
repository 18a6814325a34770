"""Two agent processes on one store before one scripted model, and callers who have a key of both.

They are two agents on one PostgreSQL, or two workers of one agent on one SQLite file.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import aiohttp

from task.llm.scripted import Reply
from task.store.access import StoreOptions
from task.store.store import open_store
from tests.support.agent import agent_process
from tests.support.cluster import NOTES
from tests.support.http_api import MODEL, NOWHERE, Api
from tests.support.ports import free_port
from tests.support.postgres_server import postgres_server
from tests.support.redis_server import redis_server
from tests.support.upstream import Answer, Item, Received, Upstream, openai_upstream
from tests.support.workers import door_of, ready_workers

PER_MINUTE = 60
DETACH_SECONDS = 2.0


@dataclass
class TwoAgents:
    """`script` is what the model answers next, whichever agent asks it."""

    folder: Path
    store_url: str
    session: aiohttp.ClientSession
    script: deque[Item] = field(default_factory=deque[Item])
    urls: list[str] = field(default_factory=list[str])
    _numbers: Iterator[int] = field(default_factory=count)

    upstream: Upstream = field(init=False)
    parent: asyncio.subprocess.Process = field(init=False)  # of the workers

    def says(self, *items: Item) -> None:
        """What the model answers in this test."""
        self.script.clear()
        self.script.extend(items)

    async def caller(self) -> tuple[Api, Api]:
        """A new caller, as a client of either agent."""
        store = await open_store(StoreOptions(self.store_url, chores=False))
        try:
            _, secret = await store.keys.create(f"owner-{next(self._numbers)}")
        finally:
            await store.close()
        one, other = (Api(url, self.upstream, self.session).with_key(secret) for url in self.urls)
        return one, other

    @asynccontextmanager
    async def agent(self, **variables: str) -> AsyncGenerator[tuple[str, asyncio.subprocess.Process]]:
        """Another agent; its address and its process."""
        port = free_port()
        home = self.folder / f"home-{port}"
        async with agent_process(home, port, {**self._variables(), **variables}) as process:
            yield f"http://127.0.0.1:{port}", process

    def notes(self) -> list[str]:
        """What the tool that writes has written."""
        kept = self.folder / "notes.txt"
        return kept.read_text().splitlines() if kept.exists() else []

    def answer(self, received: Received) -> Reply | Answer:
        item = self.script.popleft()
        return item if isinstance(item, Reply | Answer) else item(received)

    def _variables(self) -> dict[str, str]:
        return {
            "AGENT_BACKEND": "openai", "OPENAI_BASE_URL": self.upstream.url, "OPENAI_API_KEY": "sk-test",
            "DEPLOYMENT_NAME": MODEL, "DIAL_ENDPOINT": NOWHERE, "AGENT_STORE__URL": self.store_url,
            "AGENT_HTTP__MODE": "keys", "AGENT_HTTP__REQUESTS_PER_MINUTE": str(PER_MINUTE),
            "AGENT_HTTP__DETACH_SECONDS": str(DETACH_SECONDS), "AGENT_TOOL_PATHS": str(self.folder / "notes.py"),
        }  # fmt: skip


@asynccontextmanager
async def two_agents(folder: Path, **variables: str) -> AsyncGenerator[TwoAgents]:
    """Everything started, on PostgreSQL."""
    async with (
        postgres_server() as server,
        agents_before_a_model(folder, server.url) as agents,
        AsyncExitStack() as stack,
    ):
        for _ in range(2):
            url, _process = await stack.enter_async_context(agents.agent(**variables))
            agents.urls.append(url)
        yield agents


@asynccontextmanager
async def two_agents_on_redis(folder: Path) -> AsyncGenerator[TwoAgents]:
    """As `two_agents`, with a Redis that they share."""
    async with redis_server() as redis, two_agents(folder, AGENT_REDIS_URL=redis.url) as agents:
        yield agents


@asynccontextmanager
async def two_workers(folder: Path) -> AsyncGenerator[TwoAgents]:
    """Everything started, on SQLite; each address leads to one of the workers."""
    async with (
        agents_before_a_model(folder, f"sqlite:///{folder / 'store.db'}") as agents,
        agents.agent(AGENT_WORKERS="2") as (url, process),
        AsyncExitStack() as stack,
    ):
        await ready_workers(url, 2)
        for number in (1, 2):
            agents.urls.append(await stack.enter_async_context(door_of(url, process.pid, number)))
        agents.parent = process
        yield agents


@asynccontextmanager
async def agents_before_a_model(folder: Path, store_url: str) -> AsyncGenerator[TwoAgents]:
    (folder / "notes.py").write_text(NOTES)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session:
        agents = TwoAgents(folder, store_url, session)
        async with openai_upstream(then=agents.answer) as agents.upstream:
            yield agents
