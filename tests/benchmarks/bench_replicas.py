"""What replicas cost: CPU per conversation of three agents that share PostgreSQL and nginx, as a multiple of one's.

The three are compared with three agents that each have a PostgreSQL and an nginx alone, and as many people. These too
are served at the same time, as processes that compete for cores and caches take more CPU, shared engines or not.
The conversations are tool turns and answers that stream at a model's pace, through the DIAL door and `/v1`; the CPU is
that of agents, PostgreSQL and nginx together.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import processes
from tests.benchmarks.bench_agent import ROUTE
from tests.benchmarks.figures import Figure, measure_and_report
from tests.benchmarks.load import Load, request
from tests.benchmarks.replicas import Cost, Replicas, replicas

ROUNDS, PEOPLE, REST_SECONDS = 3, 12, 0.3  # people of each agent
SCRIPTS = ("chain 5", "paced 50 20")
MANY, GOAL = 3, 1.15


@dataclass
class Installation:
    """Agents with their engines, and the people who talk to them."""

    running: Replicas
    load: Load
    keys: list[str]

    async def serve(self) -> Cost:
        """What each of its people takes with a tool turn and a streamed answer through both doors."""
        before = await self.running.used()
        for script in SCRIPTS:
            await self.load.ask_at_once(request(ROUTE, script), len(self.keys))
            asked = [request("/v1/chat/completions", script, key=key) for key in self.keys]
            await asyncio.gather(*map(self.load.ask, asked))
        await asyncio.sleep(REST_SECONDS)
        return (await self.running.used() - before) / len(self.keys)


async def serve(installations: Sequence[Installation]) -> Cost:
    """The mean of installations of the same size that are served at the same time."""
    spent = await asyncio.gather(*(installation.serve() for installation in installations))
    return sum(spent, Cost()) / len(spent)


async def measured(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(processes.upstream(core=None))

        async def installed(agents: int, name: str) -> Installation:
            running = await stack.enter_async_context(replicas(folder / name, agents, upstream))
            load = Load(running.port)
            stack.callback(load.close)
            return Installation(running, load, await running.keys(PEOPLE * agents))

        alone = [await installed(1, f"alone-{number}") for number in range(MANY)]
        together = [await installed(MANY, "together")]
        rounds = [(await serve(alone), await serve(together)) for _ in range(ROUNDS + 1)][1:]  # the first warms up
    one, many = (list(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(shared.cpu / own.cpu for own, shared in rounds)
    return [
        *parts("an agent alone", one),
        *parts(f"{MANY} agents together", many),
        Figure(f"{MANY} agents together ÷ alone, CPU per conversation", ratio, "", GOAL, tolerance=0.0),
    ]


def parts(name: str, spent: list[Cost]) -> list[Figure]:
    return [
        Figure(f"{name}, CPU per conversation", statistics.median(cost.cpu for cost in spent) * 1e3, "ms"),
        Figure(f"{name}, of it the agents", statistics.median(cost.agent for cost in spent) * 1e3, "ms"),
        Figure(f"{name}, of it PostgreSQL", statistics.median(cost.postgres for cost in spent) * 1e3, "ms"),
        Figure(f"{name}, of it nginx", statistics.median(cost.nginx for cost in spent) * 1e3, "ms"),
        Figure(f"{name}, statements", statistics.median(cost.statements for cost in spent), ""),
    ]


if __name__ == "__main__":
    measure_and_report(measured)
