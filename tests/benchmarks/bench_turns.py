"""What the pieces of a turn cost: CPU of agent, PostgreSQL and HAProxy, statements and bytes of WAL.

Each piece is the difference between turns that differ in this one thing, held by 24 conversations at a time before a
real agent, PostgreSQL and HAProxy. docs/performance.md says what follows from the figures.
"""

import asyncio
from collections import defaultdict
from itertools import count, product
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp

from task.runs.traces import CHECKPOINT_SECONDS
from tests.benchmarks import processes
from tests.benchmarks.bench_agent import ROUTE
from tests.benchmarks.figures import Figure, measure_and_report
from tests.benchmarks.load import Load, request
from tests.benchmarks.replicas import Cost, Replicas, median, replicas
from tests.benchmarks.upstream import planned

DOORS = {"dial": "DIAL", "sessions": "HTTP API"}
CONVERSATIONS, TURNS, ROUNDS = 24, 2, 3
REST_SECONDS, IDLE_SECONDS = 0.5, 5.0
WORDS, FAST, SLOW = 100, 1 / 60, 1 / 20
CALLS, KILOBYTES = 5, 20.0
GOALS = {"HTTP API, a turn with an answer of one word": 21}  # statements
KINDS: dict[str, dict[str, Any]] = {
    "turn": {}, "call": {"calls": [(0.05, 0.01)] * CALLS}, "kilobyte": {"kilobytes": 1 + KILOBYTES},
    "fast": {"words": WORDS}, "slow": {"words": WORDS, "pause": SLOW},
    "checkpoint": {"first": CHECKPOINT_SECONDS + 0.2},
}  # fmt: skip
_numbers = count()


def question(
    *, calls: list[tuple[float, float]] | None = None, first: float = 0.05, words: int = 1, pause: float = FAST,
    kilobytes: float = 1.0,
) -> str:  # fmt: skip
    return planned(calls or [], first, words, pause, kilobytes)


async def held(running: Replicas, load: Load, key: str, door: str, kind: str) -> tuple[Cost, float]:
    """What turns of this kind take, idle work included, and in how many seconds; their sessions are started before."""
    asked = [await _asked(running, key, door, question(**KINDS[kind])) for _ in range(CONVERSATIONS)]
    before, began = await running.used(), perf_counter()

    async def converse(place: int) -> None:
        await asyncio.sleep(place / CONVERSATIONS)  # chunks that come in one moment would share the work of reading
        for _ in range(TURNS):
            await load.ask(asked[place])

    await asyncio.gather(*(converse(place) for place in range(CONVERSATIONS)))
    await asyncio.sleep(REST_SECONDS)
    return await running.used() - before, perf_counter() - began


async def _asked(running: Replicas, key: str, door: str, text: str) -> bytes:
    if door == "dial":
        return request(ROUTE, f"{text}{next(_numbers)}")
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{running.port}", headers=headers) as client,
        client.post("/session/start") as answer,
    ):
        return request("/v1/chat/completions", text, key=key, session_id=(await answer.json())["session_id"])


async def measured(folder: Path) -> list[Figure]:
    async with (
        processes.upstream(core=None) as upstream,
        replicas(folder, 1, upstream) as running,
    ):
        load, [key] = Load(running.port), await running.keys(1)
        try:
            for door in DOORS:
                await held(running, load, key, door, "call")  # warms up
            before = await running.used()
            await asyncio.sleep(IDLE_SECONDS)
            idle = (await running.used() - before) / IDLE_SECONDS
            figures = parts("an agent without work, a second", idle)
            for door, name in DOORS.items():
                spent = defaultdict[str, list[Cost]](list)
                for _, kind in product(range(ROUNDS), KINDS):
                    used, seconds = await held(running, load, key, door, kind)
                    spent[kind].append((used - idle * seconds) / (CONVERSATIONS * TURNS))
                found = {kind: median(each) for kind, each in spent.items()}
                figures += [row for piece, cost in pieces(found).items() for row in parts(f"{name}, {piece}", cost)]
        finally:
            load.close()
    return figures


def pieces(found: dict[str, Cost]) -> dict[str, Cost]:
    """Each piece as a difference of whole turns; small ones may come out below zero."""
    turn, streamed = found["turn"], (found["slow"] - found["fast"]) / ((SLOW - FAST) * (WORDS - 1))
    checkpoint = found["checkpoint"] - turn
    # The fast answer lasts longer than a second too, so that its trace is kept once on the way.
    words = found["fast"] - turn - streamed * (FAST * (WORDS - 1)) - checkpoint
    return {
        "a turn with an answer of one word": turn,
        "a call with its request to the model": (found["call"] - turn) / CALLS,
        "a chunk of an answer": words / (WORDS - 1),
        "a kB of a request to the model": (found["kilobyte"] - turn) / KILOBYTES,
        "a second of streaming": streamed,
        "a trace kept under way": checkpoint,
    }


def parts(name: str, cost: Cost) -> list[Figure]:
    return [
        Figure(f"{name}: agent", cost.agent * 1e3, "ms"),
        Figure(f"{name}: PostgreSQL", cost.postgres * 1e3, "ms"),
        Figure(f"{name}: balancer", cost.balancer * 1e3, "ms"),
        Figure(f"{name}: statements", cost.statements, "", GOALS.get(name)),
        Figure(f"{name}: WAL", cost.wal, "bytes"),
    ]


if __name__ == "__main__":
    measure_and_report(measured)
