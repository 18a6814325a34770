"""The cost of the HTTP door, traces kept: CPU per chunk and per tool turn of `/v1`, and a crowd with slow tools.

The rounds are those of `bench_agent`: the application and the bare loop do the same work one after the other.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from tests.benchmarks import processes
from tests.benchmarks.bench_agent import CHUNKS, ROUNDS, TURNS, Bench, Sample, Samples, per_unit, wall
from tests.benchmarks.figures import Figure, report
from tests.benchmarks.load import Load, request

ROUTE = "/v1/chat/completions"
SESSIONS = 50


class HttpBench(Bench):
    async def both(
        self, script: str, history: Sequence[dict[str, Any]] = (), people: int = 1, rounds: int = ROUNDS
    ) -> Samples:
        samples, asked = Samples(), request(ROUTE, script, history)
        for _ in range(rounds + 1):
            cpu, times = await self.bare.run(script, history, people)
            samples.bare.append(Sample(cpu, [end for end, _ in times], [first for _, first in times]))
            before = self.app.cpu()
            timings = await self.load.ask_at_once(asked, people)
            samples.app.append(
                Sample(self.app.cpu() - before, [item.seconds for item in timings], [item.first for item in timings])
            )
        del samples.app[0], samples.bare[0]
        return samples


async def figures(bench: HttpBench) -> list[Figure]:
    word, words = await bench.both("words 1"), await bench.both(f"words {CHUNKS + 1}")
    turn, turns = await bench.both("chain 1"), await bench.both(f"chain {TURNS + 1}")
    alone, crowd = await bench.both("parallel 1"), await bench.both("parallel 1", people=SESSIONS, rounds=3)
    chunk, bare_chunk = per_unit(words, word, CHUNKS, 1e6)
    step, bare_step = per_unit(turns, turn, TURNS, 1e3)
    slowest = statistics.median(max(sample.ends) for sample in crowd.app)
    return [
        Figure("/v1 relay, CPU per chunk", chunk, "µs", bare=bare_chunk, bare_goal=7),
        Figure("/v1 extra tool turn, CPU", step, "ms", 1.2, bare=bare_step),
        Figure(f"{SESSIONS} with a slow tool each, slowest ÷ one alone", slowest / wall(alone.app), "", 8),
    ]


async def measured(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(processes.upstream())
        app = await stack.enter_async_context(processes.application(port, folder))
        load, direct = Load(app.port), Load(port)
        stack.callback(load.close)
        stack.callback(direct.close)
        await app.at_rest()
        bare = await stack.enter_async_context(processes.bare_loop(port))
        return await figures(HttpBench(app, bare, load, direct))


def main() -> None:
    processes.keep_to(-1)
    with tempfile.TemporaryDirectory() as folder:
        report(uvloop.run(measured(Path(folder))))


if __name__ == "__main__":
    main()
