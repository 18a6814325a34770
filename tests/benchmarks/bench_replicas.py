"""What replicas cost: CPU per conversation of three agents that share PostgreSQL and HAProxy, as a multiple of one's;
and what a second worker costs, as a multiple of an agent with one.

The three are compared with three agents that each have a PostgreSQL and an HAProxy alone, and as many people. These too
are served at the same time, as processes that compete for cores and caches take more CPU, shared engines or not.
The conversations are tool turns and answers that stream at a model's pace, through the DIAL door and `/v1`; the CPU is
that of agents, PostgreSQL and HAProxy together.
"""

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
from tests.benchmarks.replicas import Cost, Replicas, median, replicas
from tests.support.workers import ready_workers

ROUNDS, PEOPLE, REST_SECONDS = 3, 12, 0.3  # people of each agent
SCRIPTS = ("chain 5", "paced 50 20")
MANY, GOAL = 3, 1.15
WORKER_ROUNDS, WORKER_PEOPLE, WORKERS_GOAL = 9, 64, 1.1


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


async def of_replicas(folder: Path) -> list[Figure]:
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
    cost = median(spent)
    return [
        Figure(f"{name}, CPU per conversation", statistics.median(each.cpu for each in spent) * 1e3, "ms"),
        Figure(f"{name}, of it the agents", cost.agent * 1e3, "ms"),
        Figure(f"{name}, of it PostgreSQL", cost.postgres * 1e3, "ms"),
        Figure(f"{name}, of it the balancer", cost.balancer * 1e3, "ms"),
        Figure(f"{name}, statements", cost.statements, ""),
    ]


async def of_worker(app: processes.Application, load: Load) -> float:
    """CPU seconds of one conversation."""
    before = app.cpu()
    for script in SCRIPTS:
        await load.ask_at_once(request(ROUTE, script), WORKER_PEOPLE)
    await asyncio.sleep(REST_SECONDS)
    return (app.cpu() - before) / WORKER_PEOPLE / len(SCRIPTS)


async def of_workers(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(processes.upstream(core=None))
        apps: list[tuple[processes.Application, Load]] = []
        for workers in (1, 2):
            (home := folder / str(workers)).mkdir()
            running = processes.application(port, home, core=None, AGENT_WORKERS=str(workers))
            app = await stack.enter_async_context(running)
            if workers > 1:
                await ready_workers(f"http://127.0.0.1:{app.port}", workers)
            await app.at_rest()
            apps.append((app, load := Load(app.port)))
            stack.callback(load.close)
            await of_worker(app, load)  # warms up
        rounds = [[await of_worker(app, load) for app, load in apps] for _ in range(WORKER_ROUNDS)]
    one, two = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(second / first for first, second in rounds)
    return [
        Figure("one worker, CPU per conversation", one * 1e3, "ms"),
        Figure("two workers, CPU per conversation", two * 1e3, "ms"),
        Figure("two workers ÷ one, CPU per conversation", ratio, "", WORKERS_GOAL),
    ]


async def measured(folder: Path) -> list[Figure]:
    return [*await of_replicas(folder), *await of_workers(folder)]


if __name__ == "__main__":
    measure_and_report(measured)
