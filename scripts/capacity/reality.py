"""The same turns with real agents, PostgreSQL and nginx, before a model that keeps to the turns' times."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import aiohttp

from scripts.capacity.costs import Cost
from scripts.capacity.workload import Turn
from tests.benchmarks import processes
from tests.benchmarks.bench_agent import ROUTE
from tests.benchmarks.load import Load, Timing, request
from tests.benchmarks.planned_upstream import planned
from tests.benchmarks.replicas import Replicas, replicas

UPSTREAM = "tests.benchmarks.planned_upstream"
KEYS, REST_SECONDS = 32, 0.5


@dataclass
class Reality:
    """Running agents, and people who have sessions with them."""

    running: Replicas
    load: Load
    keys: Sequence[str]
    under_way: int = 0
    _sessions: dict[int, str] = field(default_factory=dict[int, str])
    _answering: defaultdict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def ask(self, door: str, turn: Turn) -> Timing:
        """Hold one turn, after the one before it in the same conversation."""
        calls = [(call.written, call.seconds) for call in turn.calls]
        text = planned(calls, turn.first, turn.words, turn.pause, turn.prompt_kilobytes)
        async with self._answering[turn.conversation]:
            self.under_way += 1
            try:
                return await self.load.ask(await self._request(door, turn.conversation, text))
            finally:
                self.under_way -= 1

    async def _request(self, door: str, conversation: int, text: str) -> bytes:
        if door == "dial":
            return request(ROUTE, text)
        key = self.keys[conversation % len(self.keys)]
        session = self._sessions.get(conversation) or await self._started(conversation, key)
        return request("/v1/chat/completions", text, key=key, session_id=session)

    async def hold(self, door: str, turns: Sequence[Turn], seconds: float) -> tuple[Cost, float]:
        """Start each turn at its time; what the first `seconds` took, and how many turns were under way on average."""
        before, began = await self.running.used(), perf_counter()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watched(began + seconds))
            for turn in turns:
                await asyncio.sleep(max(began + turn.start - perf_counter(), 0))
                group.create_task(self.ask(door, turn))
            running = await watching
        await asyncio.sleep(REST_SECONDS)
        return await self.running.used() - before, running

    async def _watched(self, until: float) -> float:
        samples = list[int]()
        while perf_counter() < until:
            samples.append(self.under_way)
            await asyncio.sleep(0.02)
        return sum(samples) / len(samples)

    async def _started(self, conversation: int, key: str) -> str:
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{self.running.port}", headers=headers) as session,
            session.post("/session/start") as answer,
        ):
            self._sessions[conversation] = (await answer.json())["session_id"]
        return self._sessions[conversation]


@asynccontextmanager
async def reality(folder: Path, count: int) -> AsyncGenerator[Reality]:
    """So many agents, warm."""
    async with processes.upstream(module=UPSTREAM, core=None) as upstream, replicas(folder, count, upstream) as running:
        load = Load(running.port)
        try:
            yield Reality(running, load, await running.keys(KEYS))
        finally:
            load.close()
