"""Two agent processes on one PostgreSQL before one scripted model, and callers who have a key of both."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import aiohttp

from task.llm.scripted import Reply
from task.store.store import open_store
from tests.support.agent import agent_process
from tests.support.http_api import MODEL, NOWHERE, Api
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.upstream import Answer, Item, Received, Upstream, openai_upstream

PER_MINUTE = 60
DETACH_SECONDS = 2.0
NOTES = '''\
"""A tool that writes and needs approval."""

from pathlib import Path

from task.tools.declare import tool
from task.tools.models import Effect

KEPT = Path(__file__).with_name("notes.txt")


@tool(effects={Effect.WRITE})
def write_note(text: str) -> str:
    """Write a line into the notes."""
    with KEPT.open("a") as notes:
        notes.write(f"{text}\\n")
    return f"noted: {text}"
'''


@dataclass
class TwoAgents:
    """`script` is what the model answers next, whichever agent asks it."""

    folder: Path
    server: PostgresServer
    session: aiohttp.ClientSession
    script: deque[Item] = field(default_factory=deque[Item])
    urls: list[str] = field(default_factory=list[str])
    _numbers: count[int] = field(default_factory=count)

    upstream: Upstream = field(init=False)

    def says(self, *items: Item) -> None:
        """What the model answers in this test."""
        self.script.clear()
        self.script.extend(items)

    async def caller(self) -> tuple[Api, Api]:
        """A new caller, as a client of either agent."""
        store = await open_store(self.server.url, chores=False)
        try:
            _, secret = await store.keys.create(f"owner-{next(self._numbers)}")
        finally:
            await store.close()
        one, other = (Api(url, self.upstream, self.session).with_key(secret) for url in self.urls)
        return one, other

    @asynccontextmanager
    async def agent(self) -> AsyncGenerator[tuple[str, asyncio.subprocess.Process]]:
        """Another agent; its address and its process."""
        port = free_port()
        home = self.folder / f"home-{port}"
        async with agent_process(home, port, self._variables()) as process:
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
            "DEPLOYMENT_NAME": MODEL, "DIAL_ENDPOINT": NOWHERE, "AGENT_STORE__URL": self.server.url,
            "AGENT_HTTP__MODE": "keys", "AGENT_HTTP__REQUESTS_PER_MINUTE": str(PER_MINUTE),
            "AGENT_HTTP__DETACH_SECONDS": str(DETACH_SECONDS), "AGENT_TOOL_PATHS": str(self.folder / "notes.py"),
        }  # fmt: skip


@asynccontextmanager
async def two_agents(folder: Path) -> AsyncGenerator[TwoAgents]:
    """Everything started."""
    (folder / "notes.py").write_text(NOTES)
    async with (
        postgres_server() as server,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session,
        AsyncExitStack() as stack,
    ):
        agents = TwoAgents(folder, server, session)
        agents.upstream = await stack.enter_async_context(openai_upstream(then=agents.answer))
        starting = [stack.enter_async_context(agents.agent()) for _ in range(2)]
        for started in starting:
            agents.urls.append((await started)[0])
        yield agents
