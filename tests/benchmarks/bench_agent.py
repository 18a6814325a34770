"""The cost of the whole application: CPU per chunk, tool turn and long history, first word, crowd, start, memory; and
of its HTTP door, traces kept: CPU per chunk and per tool turn of `/v1`, and a crowd with slow tools.

The application and the bare loop run on one core, the load and the upstream on another. Every round measures both, so
that a busy machine slows both. CPU is read from the application's process; figures are medians. Figures of the wall
clock are not judged while other programs use the application's core.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

from tests.benchmarks import processes
from tests.benchmarks.figures import Figure, measure_and_report
from tests.benchmarks.load import Load, Timing, request
from tests.benchmarks.upstream import ANSWER_WORDS

ROUTE = "/openai/deployments/general-purpose-agent/chat/completions"
HTTP_ROUTE, SESSIONS = "/v1/chat/completions", 50
ROUNDS, STARTS, CROWD_ROUNDS = 9, 3, 5
CHUNKS, TURNS, PARALLEL, PEOPLE, PACED_WORDS, PAUSE_MS = 2000, 20, 8, 256, 50, 20
_EVERYBODY = str(PEOPLE)  # the crowd has one key
NOISE = 0.25  # above this, other programs take so much of the core that wall-clock seconds mean nothing
IDEAL_SECONDS = (PACED_WORDS - 1) * PAUSE_MS / 1000
HISTORY = [
    {"role": role, "content": "The quick brown fox jumps over the lazy dog. " * 4 + "The quick brown fox "}
    for role in ("user", "assistant")
] * 100

# Quoted, not measured here: the same work in parallel on a machine with two cores, where the bare loop took 2.2 µs,
# 0.14 ms, 0.99 ms, 0.13 ms, 101 ms and 1.02.
PEERS: dict[str, dict[str, float]] = {
    "relay": {"openai-agents": 105, "pydantic-ai": 194, "langchain": 154, "langgraph": 156},
    "turn": {"openai-agents": 8.1, "pydantic-ai": 10.7, "langchain": 9.4, "langgraph": 7.5, "smolagents": 9.5},
    "history": {"openai-agents": 190, "pydantic-ai": 219, "langchain": 192, "langgraph": 189},
    "first": {"openai-agents": 4.2, "pydantic-ai": 3.0, "langchain": 3.0, "langgraph": 2.9},
    "tools": {"openai-agents": 121, "pydantic-ai": 123, "langchain": 124, "langgraph": 119, "smolagents": 219},
    "crowd": {"openai-agents": 3.7, "pydantic-ai": 7.5, "langchain": 3.5, "smolagents": 2.4},
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The cost of one piece of work: CPU seconds, and for each conversation seconds to its end and its first word."""

    cpu: float
    ends: Sequence[float]
    firsts: Sequence[float]


@dataclass(slots=True)
class Samples:
    """The same work in each round, by the application and by the bare loop."""

    app: list[Sample] = field(default_factory=list[Sample])
    bare: list[Sample] = field(default_factory=list[Sample])


@dataclass(frozen=True, slots=True)
class Bench:
    app: processes.Application
    bare: processes.BareLoop
    load: Load
    direct: Load
    route: str = ROUTE
    rest_seconds: float = 0.03  # the work after the last byte belongs to the answer

    async def both(
        self, script: str, history: Sequence[dict[str, Any]] = (), people: int = 1, rounds: int = ROUNDS
    ) -> Samples:
        """The script's samples; the first round warms up and is left out."""
        samples, asked = Samples(), request(self.route, script, history)
        for _ in range(rounds + 1):
            cpu, times = await self.bare.run(script, history, people)
            samples.bare.append(Sample(cpu, [end for end, _ in times], [first for _, first in times]))
            samples.app.append(await self._by_application(script, asked, people))
        del samples.app[0], samples.bare[0]
        return samples

    async def _by_application(self, script: str, asked: bytes, people: int) -> Sample:
        before = self.app.cpu()
        timings = await self.load.ask_at_once(asked, people)
        await asyncio.sleep(self.rest_seconds)
        _same_work(script, timings)
        return Sample(self.app.cpu() - before, [t.seconds for t in timings], [t.first for t in timings])

    async def first_words(self, rounds: int) -> tuple[float, float]:
        """Median seconds to the first word through the application and straight from the upstream."""
        script = f"words {ANSWER_WORDS}"
        through, straight = request(ROUTE, script), request("/v1/chat/completions", script)
        pairs = [((await self.load.ask(through)).first, (await self.direct.ask(straight)).first) for _ in range(rounds)]
        return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def _same_work(script: str, timings: Sequence[Timing]) -> None:
    kind, *numbers = script.split()
    expected = int(numbers[0]) if kind in ("words", "paced") else ANSWER_WORDS
    assert {timing.words for timing in timings} == {expected}, f"{script}: {timings[:3]}"


def cpu(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.cpu for sample in samples)


def wall(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.ends[0] for sample in samples)


def p99(samples: Sequence[Sample]) -> float:
    return statistics.median(sorted(sample.ends)[int(0.99 * len(sample.ends))] for sample in samples)


def per_unit(many: Samples, one: Samples, units: int, scale: float) -> tuple[float, float]:
    """The cost of one more unit to the application and to the bare loop."""
    return (
        (cpu(many.app) - cpu(one.app)) / units * scale,
        (cpu(many.bare) - cpu(one.bare)) / units * scale,
    )


async def streams_and_turns(bench: Bench) -> tuple[Samples, tuple[float, float], tuple[float, float]]:
    """The samples of one word; what a chunk (µs) and a tool turn (ms) more cost the application and the bare loop."""
    word, words = await bench.both("words 1"), await bench.both(f"words {CHUNKS + 1}")
    turn, turns = await bench.both("chain 1"), await bench.both(f"chain {TURNS + 1}")
    return word, per_unit(words, word, CHUNKS, 1e6), per_unit(turns, turn, TURNS, 1e3)


async def cpu_figures(bench: Bench) -> list[Figure]:
    word, (chunk, bare_chunk), (step, bare_step) = await streams_and_turns(bench)
    history = await bench.both("chain 5", HISTORY)
    return [
        Figure("relay, CPU per chunk", chunk, "µs", bare=bare_chunk, bare_goal=1.6, peers=PEERS["relay"]),
        Figure("extra tool turn, CPU", step, "ms", bare=bare_step, bare_goal=3, peers=PEERS["turn"]),
        Figure(
            f"5 turns after {len(HISTORY)} messages, CPU", cpu(history.app) * 1e3, "ms",
            bare=cpu(history.bare) * 1e3, bare_goal=4, peers=PEERS["history"],
        ),
        Figure("one short answer, CPU", cpu(word.app) * 1e3, "ms", bare=cpu(word.bare) * 1e3),
    ]  # fmt: skip


async def http_figures(bench: Bench) -> list[Figure]:
    _, (chunk, bare_chunk), (step, bare_step) = await streams_and_turns(bench)
    alone, crowd = await bench.both("parallel 1"), await bench.both("parallel 1", people=SESSIONS, rounds=3)
    slowest = statistics.median(max(sample.ends) for sample in crowd.app)
    return [
        Figure("/v1 relay, CPU per chunk", chunk, "µs", bare=bare_chunk, bare_goal=2),
        Figure("/v1 extra tool turn, CPU", step, "ms", bare=bare_step, bare_goal=3.5),
        Figure(f"{SESSIONS} with a slow tool each, slowest ÷ one alone", slowest / wall(alone.app), "", 8),
    ]


async def wall_figures(bench: Bench) -> list[Figure]:
    first, straight = await bench.first_words(60)
    tools = await bench.both(f"parallel {PARALLEL}")
    crowd = await bench.both(f"paced {PACED_WORDS} {PAUSE_MS}", people=PEOPLE, rounds=CROWD_ROUNDS)
    shared = PEOPLE * PACED_WORDS / 1e6
    return [
        Figure("first word, added by the application", (first - straight) * 1e3, "ms", 1.0, peers=PEERS["first"]),
        Figure(
            f"{PARALLEL} tools of 100 ms at once", wall(tools.app) * 1e3, "ms", bare=wall(tools.bare) * 1e3,
            bare_goal=1.04, tolerance=0.01, peers=PEERS["tools"],  # most of it is the tools' own time
        ),
        Figure(
            f"{PEOPLE} conversations, p99 ÷ ideal", p99(crowd.app) / IDEAL_SECONDS, "", 1.35,
            bare=p99(crowd.bare) / IDEAL_SECONDS, peers=PEERS["crowd"],
        ),
        Figure(
            f"{PEOPLE} conversations, CPU per chunk", cpu(crowd.app) / shared, "µs", bare=cpu(crowd.bare) / shared,
            bare_goal=3.5,
        ),
    ]  # fmt: skip


async def of_dial(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(processes.upstream())
        starts: list[float] = []
        for _ in range(STARTS - 1):
            async with processes.application(port, folder, core=0, AGENT_HTTP__RUNS_PER_CALLER=_EVERYBODY) as app:
                starts.append(app.start_seconds)
        app = await stack.enter_async_context(
            processes.application(port, folder, core=0, AGENT_HTTP__RUNS_PER_CALLER=_EVERYBODY)
        )
        starts.append(app.start_seconds)
        started_cpu = app.cpu()
        load, direct = Load(app.port), Load(port)
        stack.callback(load.close)
        stack.callback(direct.close)
        await app.at_rest()
        await load.ask(request(ROUTE, "chain 1"))
        memory = app.megabytes()
        bench = Bench(app, await stack.enter_async_context(processes.bare_loop(port)), load, direct)
        waited, worked = app.waited(), app.cpu()
        cpu = await cpu_figures(bench)
        wall = [*await wall_figures(bench), Figure("port open after the start", statistics.median(starts), "s", 1.2)]
        noise = (app.waited() - waited) / (app.cpu() - worked)
        return [
            *cpu,
            *(replace(figure, judged=noise <= NOISE) for figure in wall),
            Figure("CPU until the port is open", started_cpu, "s"),
            Figure("memory after the first answer", memory, "MB", 135),
            Figure("noise: waiting for a core ÷ CPU", noise, ""),
        ]


async def of_http(folder: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(processes.upstream())
        # With the API's own limit of steps, most of a long chain of calls would be left out.
        app = await stack.enter_async_context(processes.application(port, folder, AGENT_HTTP__STEPS="100"))
        load, direct = Load(app.port), Load(port)
        stack.callback(load.close)
        stack.callback(direct.close)
        await app.at_rest()
        bare = await stack.enter_async_context(processes.bare_loop(port))
        return await http_figures(Bench(app, bare, load, direct, HTTP_ROUTE, rest_seconds=0))


async def measured(folder: Path) -> list[Figure]:
    (second := folder / "http").mkdir()
    return [*await of_dial(folder), *await of_http(second)]


if __name__ == "__main__":
    processes.keep_to(-1)
    measure_and_report(measured, uvloop.run)
