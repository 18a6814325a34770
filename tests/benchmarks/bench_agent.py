"""The cost of the whole application: CPU per chunk, tool turn and long history, first word, crowd, start, memory; and
of its HTTP door, traces kept: CPU per chunk and per tool turn of `/v1`, and a crowd with slow tools.

The application and the bare loop run on one core, the load and the upstream on another. Every round measures both, so
that a busy machine slows both. CPU is read from the application's process; figures are medians. Figures of the wall
clock are not judged while other programs use the application's core.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

from tests.benchmarks import processes
from tests.benchmarks.figures import Figure, measure_and_report
from tests.benchmarks.load import Load, request
from tests.benchmarks.upstream import ANSWER_WORDS

ROUTE = "/openai/deployments/general-purpose-agent/chat/completions"
HTTP_ROUTE, SESSIONS = "/v1/chat/completions", 50
ROUNDS, STARTS, CROWD_ROUNDS = 9, 3, 5
CHUNKS, TURNS, PARALLEL, PEOPLE, PACED_WORDS, PAUSE_MS = 2000, 20, 8, 256, 50, 20
NOISE = 0.25  # above this, other programs take so much of the core that wall-clock seconds mean nothing
IDEAL_SECONDS = (PACED_WORDS - 1) * PAUSE_MS / 1000
HISTORY = [
    {"role": role, "content": "The quick brown fox jumps over the lazy dog. " * 4 + "The quick brown fox "}
    for role in ("user", "assistant")
] * 100


@dataclass(frozen=True, slots=True)
class Sample:
    """The cost of one piece of work: CPU seconds, and for each conversation seconds to its end."""

    cpu: float
    ends: Sequence[float]


@dataclass(slots=True)
class Samples:
    """The same work in each round, by the application and by the bare loop."""

    app: list[Sample] = field(default_factory=list[Sample])
    bare: list[Sample] = field(default_factory=list[Sample])


def cpu(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.cpu for sample in samples)


def per_unit(many: Samples, one: Samples, units: int, scale: float) -> tuple[float, float]:
    """The cost of one more unit to the application and to the bare loop."""
    return (
        (cpu(many.app) - cpu(one.app)) / units * scale,
        (cpu(many.bare) - cpu(one.bare)) / units * scale,
    )


async def streams_and_turns(bench: Rivals) -> tuple[Samples, tuple[float, float], tuple[float, float]]:
    """The samples of one word; what a chunk (µs) and a tool turn (ms) more cost the application and the bare loop."""
    word, words = await bench.both("words 1"), await bench.both(f"words {CHUNKS + 1}")
    turn, turns = await bench.both("chain 1"), await bench.both(f"chain {TURNS + 1}")
    return word, per_unit(words, word, CHUNKS, 1e6), per_unit(turns, turn, TURNS, 1e3)


async def cpu_figures(bench: Rivals) -> list[Figure]:
    word, (chunk, bare_chunk), (step, bare_step) = await streams_and_turns(bench)
    history = await bench.both("chain 5", HISTORY)
    return [
        Figure("relay, CPU per chunk", chunk, "µs", bare=bare_chunk, bare_goal=1.6),
        Figure("extra tool turn, CPU", step, "ms", bare=bare_step, bare_goal=3),
        Figure(
            f"5 turns after {len(HISTORY)} messages, CPU", cpu(history.app) * 1e3, "ms",
            bare=cpu(history.bare) * 1e3, bare_goal=4
        ),
        Figure("one short answer, CPU", cpu(word.app) * 1e3, "ms", bare=cpu(word.bare) * 1e3),
    ]  # fmt: skip


async def wall_figures(bench: Rivals) -> list[Figure]:
    first, straight = await bench.first_words(60)
    tools = await bench.both(f"parallel {PARALLEL}")
    crowd = await bench.both(f"paced {PACED_WORDS} {PAUSE_MS}", people=PEOPLE, rounds=CROWD_ROUNDS)
    shared = PEOPLE * PACED_WORDS / 1e6
    return [
        Figure("first word, added by the application", (first - straight) * 1e3, "ms", 1.0),
        Figure(
            f"{PARALLEL} tools of 100 ms at once", wall(tools.app) * 1e3, "ms", bare=wall(tools.bare) * 1e3,
            bare_goal=1.04, tolerance=0.01  # most of it is the tools' own time
        ),
        Figure(
            f"{PEOPLE} conversations, p99 ÷ ideal", wall(crowd.app, 0.99) / IDEAL_SECONDS, "", 1.35,
            bare=wall(crowd.bare, 0.99) / IDEAL_SECONDS
        ),
        Figure(
            f"{PEOPLE} conversations, CPU per chunk", cpu(crowd.app) / shared, "µs", bare=cpu(crowd.bare) / shared,
            bare_goal=3.5,
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rivals:
    """The application and the bare loop before one upstream; `direct` leads straight to that."""

    app: processes.Application
    bare: processes.BareLoop
    load: Load
    direct: Load
    route: str
    rest_seconds: float  # the work after the last byte may belong to the answer

    async def both(
        self, script: str, history: Sequence[dict[str, Any]] = (), people: int = 1, rounds: int = ROUNDS
    ) -> Samples:
        """The script's samples; the first round warms up and is left out."""
        samples, asked = Samples(), request(self.route, script, history)
        kind, *numbers = script.split()
        words = int(numbers[0]) if kind in ("words", "paced") else ANSWER_WORDS
        for _ in range(rounds + 1):
            used, times = await self.bare.run(script, history, people)
            samples.bare.append(Sample(used, [end for end, _ in times]))
            before = self.app.cpu()
            timings = await self.load.ask_at_once(asked, people)
            await asyncio.sleep(self.rest_seconds)
            assert {timing.words for timing in timings} == {words}, f"{script}: {timings[:3]}"
            samples.app.append(Sample(self.app.cpu() - before, [timing.seconds for timing in timings]))
        del samples.app[0], samples.bare[0]
        return samples

    async def first_words(self, rounds: int) -> tuple[float, float]:
        """Median seconds to the first word through the application and straight from the upstream."""
        script = f"words {ANSWER_WORDS}"
        through, straight = request(ROUTE, script), request("/v1/chat/completions", script)
        pairs = [((await self.load.ask(through)).first, (await self.direct.ask(straight)).first) for _ in range(rounds)]
        return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def wall(samples: Sequence[Sample], share: float = 0.0) -> float:
    """The median over the rounds of the seconds after which this share of the conversations had ended."""
    return statistics.median(sorted(sample.ends)[int(share * len(sample.ends))] for sample in samples)


@asynccontextmanager
async def rivals(
    folder: Path, route: str, rest_seconds: float, starts: int = 1, **settings: str
) -> AsyncGenerator[tuple[Rivals, list[float]]]:
    """The rivals, and the seconds of so many starts of the application."""
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(processes.upstream())
        seconds: list[float] = []
        for _ in range(starts - 1):
            async with processes.application(port, folder, core=0, **settings) as app:
                seconds.append(app.start_seconds)
        app = await stack.enter_async_context(processes.application(port, folder, core=0, **settings))
        load, direct = Load(app.port), Load(port)
        stack.callback(load.close)
        stack.callback(direct.close)
        bare = await stack.enter_async_context(processes.bare_loop(port))
        yield Rivals(app, bare, load, direct, route, rest_seconds), [*seconds, app.start_seconds]


async def of_dial(folder: Path) -> list[Figure]:
    settings = {"AGENT_HTTP__RUNS_PER_CALLER": str(PEOPLE)}  # the crowd has one key
    async with rivals(folder, ROUTE, 0.03, STARTS, **settings) as (bench, starts):
        app, started_cpu = bench.app, bench.app.cpu()
        await app.at_rest()
        await bench.load.ask(request(ROUTE, "chain 1"))
        memory, waited, worked = app.megabytes(), app.waited(), app.cpu()
        cpu = await cpu_figures(bench)
        clock = [*await wall_figures(bench), Figure("port open after the start", statistics.median(starts), "s", 1.2)]
        noise = (app.waited() - waited) / (app.cpu() - worked)
    return [
        *cpu,
        *(replace(figure, judged=noise <= NOISE) for figure in clock),
        Figure("CPU until the port is open", started_cpu, "s"),
        Figure("memory after the first answer", memory, "MB", 120),
        Figure("noise: waiting for a core ÷ CPU", noise, ""),
    ]


async def of_http(folder: Path) -> list[Figure]:
    # With the API's own limit of steps, most of a long chain of calls would be left out.
    async with rivals(folder, HTTP_ROUTE, 0, AGENT_HTTP__STEPS="100") as (bench, _):
        await bench.app.at_rest()
        _, (chunk, bare_chunk), (step, bare_step) = await streams_and_turns(bench)
        alone, crowd = await bench.both("parallel 1"), await bench.both("parallel 1", people=SESSIONS, rounds=3)
    slowest = statistics.median(max(sample.ends) for sample in crowd.app)
    return [
        Figure("/v1 relay, CPU per chunk", chunk, "µs", bare=bare_chunk, bare_goal=2),
        Figure("/v1 extra tool turn, CPU", step, "ms", bare=bare_step, bare_goal=3),
        Figure(f"{SESSIONS} with a slow tool each, slowest ÷ one alone", slowest / wall(alone.app), "", 8),
    ]


async def measured(folder: Path) -> list[Figure]:
    (second := folder / "http").mkdir()
    return [*await of_dial(folder), *await of_http(second)]


if __name__ == "__main__":
    processes.keep_to(-1)
    measure_and_report(measured, uvloop.run)
