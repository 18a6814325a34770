"""What a second worker costs: CPU per conversation of an agent with two workers, as a multiple of one with one.

Both serve the same conversations in turn: tool turns, and answers that stream at the pace of a model.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from tests.benchmarks import processes
from tests.benchmarks.bench_agent import ROUTE
from tests.benchmarks.figures import Figure, measure_and_report
from tests.benchmarks.load import Load, request
from tests.support.workers import ready_workers

ROUNDS, PEOPLE, REST_SECONDS = 9, 64, 0.3
SCRIPTS = ("chain 5", "paced 50 20")
GOAL = 1.1


async def spent(app: processes.Application, load: Load) -> float:
    """CPU seconds of one conversation."""
    before = app.cpu()
    for script in SCRIPTS:
        await load.ask_at_once(request(ROUTE, script), PEOPLE)
    await asyncio.sleep(REST_SECONDS)
    return (app.cpu() - before) / PEOPLE / len(SCRIPTS)


async def measured(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(processes.upstream(core=None))
        apps: list[tuple[processes.Application, Load]] = []
        for workers in (1, 2):
            home = folder / str(workers)
            home.mkdir()
            running = processes.application(port, home, core=None, AGENT_WORKERS=str(workers))
            app = await stack.enter_async_context(running)
            if workers > 1:
                await ready_workers(f"http://127.0.0.1:{app.port}", workers)
            await app.at_rest()
            load = Load(app.port)
            stack.callback(load.close)
            await spent(app, load)  # warms up
            apps.append((app, load))
        rounds = [[await spent(app, load) for app, load in apps] for _ in range(ROUNDS)]
        one, two = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(second / first for first, second in rounds)
        return [
            Figure("one worker, CPU per conversation", one * 1e3, "ms"),
            Figure("two workers, CPU per conversation", two * 1e3, "ms"),
            Figure("two workers ÷ one, CPU per conversation", ratio, "", GOAL),
        ]


if __name__ == "__main__":
    measure_and_report(measured, uvloop.run)
