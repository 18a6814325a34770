"""The cost of one MCP tool call to the agent: `python -m tests.benchmarks.bench_mcp`."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time

from task.tools.mcp.mcp_client import MCPClient
from tests.benchmarks.figures import Figure, report
from tests.support.mcp_processes import mcp_peer

CALLS = 300
AT_ONCE = 100
BUSY = 1.5  # load per core above which a figure describes the machine rather than the agent


async def measure(folder: Path) -> list[Figure]:
    """The figures for today's protocol and for the older one."""
    figures: list[Figure] = []
    for era in ("modern", "legacy"):
        with mcp_peer(folder, legacy=era == "legacy") as server:
            async with MCPClient.create(server.url) as client:
                await client.get_tools()
                busy = process_time()
                call = await _median(lambda c=client: c.call_tool("echo", {"text": "x"}), CALLS)
                own = (process_time() - busy) / CALLS
                figures.append(_figure(f"MCP client call, {era}", call * 1000, "ms", 6))
                figures.append(_figure(f"MCP client call, own CPU, {era}", own * 1000, "ms", None))
                started = perf_counter()
                await asyncio.gather(*(client.call_tool("echo", {"text": "x"}) for _ in range(AT_ONCE)))
                rate = AT_ONCE / (perf_counter() - started)
                figures.append(_figure(f"MCP client calls at once, {era}", rate, "1/s", None))
    return figures


async def _median(work: Callable[[], Awaitable[object]], times: int) -> float:
    seconds: list[float] = []
    for _ in range(times):
        started = perf_counter()
        await work()
        seconds.append(perf_counter() - started)
    return statistics.median(seconds)


def _figure(name: str, value: float, unit: str, goal: float | None) -> Figure:
    calm = os.getloadavg()[0] < BUSY * (os.cpu_count() or 1)
    return Figure(name, value, unit, goal, judged=calm)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report(asyncio.run(measure(Path(folder))))


if __name__ == "__main__":
    main()
