"""What one answer costs the agent: CPU per chunk, per tool turn and per long history, first token, start, memory.

The agent is a process of its own under its real server; only its CPU time is counted. The upstream writes whole answers
at once, so that nothing but the agent's own work is measured. Each figure is a median, next to its goal.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web

from task.llm.scripted import Reply, says, wants
from tests.support.upstream import Received, openai_upstream
from tests.support.upstream_wire import Answer, rendered

ROOT = Path(__file__).parent.parent.parent
ROUTE = "/openai/deployments/general-purpose-agent/chat/completions"
CHUNKS, TURNS, HISTORY, PARALLEL = 2000, 20, 200, 8
SLOW_TOOL = '''
import asyncio
from task.tools.declare import tool

@tool
async def slow(number: int) -> str:
    """Wait for a tenth of a second."""
    await asyncio.sleep(0.1)
    return str(number)
'''


@dataclass(frozen=True, slots=True)
class Agent:
    """The running agent, seen from outside."""

    session: aiohttp.ClientSession
    url: str
    process: psutil.Process
    start_seconds: float

    async def cost(self, script: str, messages: list[dict[str, Any]] | None = None) -> tuple[float, float, float]:
        """CPU seconds, wall seconds and seconds to the first text of one answer."""
        body = {"stream": True, "messages": [*(messages or []), {"role": "user", "content": script}]}
        before, began, first = self._cpu(), time.perf_counter(), 0.0
        async with self.session.post(self.url + ROUTE, json=body, headers={"Api-Key": "key"}) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if not first and b'"content":"' in line and b'"content":""' not in line:
                    first = time.perf_counter() - began
        wall = time.perf_counter() - began
        await asyncio.sleep(0.02)  # the work after the last byte belongs to the answer
        return self._cpu() - before, wall, first

    def _cpu(self) -> float:
        # Linux counts nanoseconds per thread here; the usual CPU times have steps of 10 ms.
        threads = list(Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"))
        if threads:
            return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
        times = self.process.cpu_times()
        return times.user + times.system


def answer(received: Received) -> Answer:
    """`words N`, `chain N` (N tool turns) or `parallel N` (N calls at once), as the user's message says."""
    kind, count = _script(received)
    results = sum(message["role"] == "tool" for message in received.messages)
    reply: Reply = says("Done.")
    if kind == "words":
        reply = says(*["lorem "] * count)
    elif kind == "chain" and results < count:
        reply = wants("calculator", expression=f"{results} + 1")
    elif kind == "parallel" and not results:
        calls = [wants("slow", number=number) for number in range(count)]
        reply = calls[0]
        for call in calls[1:]:
            reply = reply & call
    parts = rendered(reply, received).parts
    return Answer((b"".join(part for part in parts if isinstance(part, bytes)),))


def _script(received: Received) -> tuple[str, int]:
    asked = [message["content"] for message in received.messages if message["role"] == "user"]
    kind, _, count = str(asked[-1]).partition(" ")
    return kind, int(count)


@asynccontextmanager
async def bucket_server() -> AsyncGenerator[str]:
    """As much of DIAL Core as an answer with tools needs: whose bucket it is."""

    async def bucket(request: web.Request) -> web.Response:
        return web.json_response({"bucket": "b1"})

    app = web.Application()
    app.router.add_get("/v1/bucket", bucket)
    runner = web.AppRunner(app)
    await runner.setup()
    port = _free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"http://127.0.0.1:{port}"
    await runner.cleanup()


@asynccontextmanager
async def running_agent() -> AsyncGenerator[Agent]:
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder, "slow_tool.py")
        tools.write_text(SLOW_TOOL, encoding="utf-8")
        async with (
            openai_upstream(then=answer) as upstream,
            bucket_server() as core,
            aiohttp.ClientSession() as session,
        ):
            port = _free_port()
            environment = os.environ | {
                "AGENT_BACKEND": "openai",
                "AGENT_DATA_DIR": folder,
                "AGENT_LIMITS__STEPS": "100",
                "AGENT_LOG_LEVEL": "WARNING",
                "AGENT_PORT": str(port),
                "AGENT_TOOL_PATHS": str(tools),
                "DIAL_ENDPOINT": core,
                "OPENAI_BASE_URL": upstream.url,
            }
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "task", "serve", cwd=ROOT, env=environment
            )
            try:
                await asyncio.wait_for(_healthy(session, f"http://127.0.0.1:{port}/health"), 20)
                seconds = time.perf_counter() - began
                yield Agent(session, f"http://127.0.0.1:{port}", psutil.Process(process.pid), seconds)
            finally:
                process.terminate()
                await asyncio.wait_for(process.wait(), 15)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _healthy(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        try:
            async with session.get(url) as response:
                if response.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.01)


async def median(measure: Callable[[], Awaitable[float]], times: int) -> float:
    return statistics.median([await measure() for _ in range(times)])


async def main() -> None:
    async with running_agent() as agent:
        memory = agent.process.memory_info().rss / 2**20
        await agent.cost(f"words {CHUNKS}")
        await agent.cost(f"chain {TURNS}")

        async def cpu(script: str, messages: list[dict[str, Any]] | None = None) -> float:
            return (await agent.cost(script, messages))[0]

        async def first_token() -> float:
            return (await agent.cost("words 20"))[2]

        async def parallel() -> float:
            return (await agent.cost(f"parallel {PARALLEL}"))[1]

        one, many = await median(lambda: cpu("words 1"), 20), await median(lambda: cpu(f"words {CHUNKS}"), 7)
        chain = await median(lambda: cpu(f"chain {TURNS}"), 7)
        long = [{"role": role, "content": "lorem ipsum " * 10} for role in ("user", "assistant")] * (HISTORY // 2)
        history = await median(lambda: cpu("chain 5", long), 7)
        rows = [
            ("relay, CPU per chunk", (many - one) / CHUNKS * 1e6, "µs", "15"),
            ("tool turn, CPU each", (chain - one) / TURNS * 1e3, "ms", "1.0"),
            (f"5 turns with {HISTORY} messages, CPU", history * 1e3, "ms", "10"),
            ("first token, wall", await median(first_token, 30) * 1e3, "ms", ""),
            (f"{PARALLEL} tools of 100 ms, wall", await median(parallel, 7) * 1e3, "ms", "105"),
            ("start to healthy, wall", agent.start_seconds, "s", "1.5"),
            ("memory at rest", memory, "MB", "500"),
        ]
        for name, value, unit, goal in rows:
            print(f"{name:36}{value:8.2f} {unit:3} {f'goal {goal}' if goal else ''}".rstrip())


if __name__ == "__main__":
    asyncio.run(main())
