"""The cost of one MCP tool call to the agent: `python -m tests.benchmarks.bench_mcp`."""

import asyncio
from pathlib import Path
from time import perf_counter, process_time

from task.tools.mcp.mcp_client import MCPClient
from tests.benchmarks.figures import Figure, measure_and_report, median_seconds, quiet_machine
from tests.support.mcp_processes import mcp_peer

CALLS = 300
AT_ONCE = 100


async def measure(folder: Path) -> list[Figure]:
    """The figures for today's protocol and for the older one."""
    figures: list[Figure] = []
    for era in ("modern", "legacy"):
        with mcp_peer(folder, legacy=era == "legacy") as server:
            async with MCPClient.create(server.url) as client:
                await client.get_tools()
                busy = process_time()
                call = await median_seconds(lambda c=client: c.call_tool("echo", {"text": "x"}), CALLS)
                own = (process_time() - busy) / CALLS
                figures.append(Figure(f"MCP client call, {era}", call * 1000, "ms", 6, judged=quiet_machine()))
                figures.append(Figure(f"MCP client call, own CPU, {era}", own * 1000, "ms"))
                started = perf_counter()
                await asyncio.gather(*(client.call_tool("echo", {"text": "x"}) for _ in range(AT_ONCE)))
                rate = AT_ONCE / (perf_counter() - started)
                figures.append(Figure(f"MCP client calls at once, {era}", rate, "1/s"))
    return figures


if __name__ == "__main__":
    measure_and_report(measure)
