"""The cost of the HTTP door, traces kept: CPU per chunk and per tool turn of `/v1`, and a crowd with slow tools.

The rounds are those of `bench_agent`: the application and the bare loop do the same work one after the other.
"""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from tests.benchmarks import processes
from tests.benchmarks.bench_agent import CHUNKS, TURNS, Bench, per_unit, wall
from tests.benchmarks.figures import Figure, measure_and_report
from tests.benchmarks.load import Load

ROUTE = "/v1/chat/completions"
SESSIONS = 50


async def figures(bench: Bench) -> list[Figure]:
    word, words = await bench.both("words 1"), await bench.both(f"words {CHUNKS + 1}")
    turn, turns = await bench.both("chain 1"), await bench.both(f"chain {TURNS + 1}")
    alone, crowd = await bench.both("parallel 1"), await bench.both("parallel 1", people=SESSIONS, rounds=3)
    chunk, bare_chunk = per_unit(words, word, CHUNKS, 1e6)
    step, bare_step = per_unit(turns, turn, TURNS, 1e3)
    slowest = statistics.median(max(sample.ends) for sample in crowd.app)
    return [
        Figure("/v1 relay, CPU per chunk", chunk, "µs", bare=bare_chunk, bare_goal=2),
        Figure("/v1 extra tool turn, CPU", step, "ms", bare=bare_step, bare_goal=3.5),
        Figure(f"{SESSIONS} with a slow tool each, slowest ÷ one alone", slowest / wall(alone.app), "", 8),
    ]


async def measured(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(processes.upstream())
        # With the API's own limit of steps, most of a long chain of calls would be left out.
        app = await stack.enter_async_context(processes.application(port, folder, AGENT_HTTP__STEPS="100"))
        load, direct = Load(app.port), Load(port)
        stack.callback(load.close)
        stack.callback(direct.close)
        await app.at_rest()
        bare = await stack.enter_async_context(processes.bare_loop(port))
        return await figures(Bench(app, bare, load, direct, ROUTE, rest_seconds=0))


if __name__ == "__main__":
    processes.keep_to(-1)
    measure_and_report(measured, uvloop.run)
