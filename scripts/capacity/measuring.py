"""Measure what pieces of work cost: differences between turns that differ in one thing, on real agents and engines."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from itertools import count, product
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from scripts.capacity.costs import DOORS, Cost, Costs, DoorCosts, median
from scripts.capacity.pieces import other_costs
from scripts.capacity.reality import REST_SECONDS, Reality, reality
from scripts.capacity.workload import Call, Turn
from task.runs.traces import CHECKPOINT_SECONDS
from tests.benchmarks.calibration import slowness

PEOPLE, TURNS, ROUNDS, IDLE_SECONDS = 24, 4, 3, 10.0
WORDS, SLOW, FAST = 100, 1 / 20, 1 / 60
CALLS, KILOBYTES, OPEN = 5, 20.0, 200
_numbers = count()


def turn(
    number: int, *, calls: int = 0, words: int = 1, pause: float = FAST, kilobytes: float = 1.0, first: float = 0.05
) -> Turn:
    made = (Call("other", 0.05, 0.01),) * calls
    return Turn(0.0, number, made, first, words, pause, kilobytes)


KINDS: dict[str, dict[str, Any]] = {
    "turn": {}, "call": {"calls": CALLS}, "kilobyte": {"kilobytes": 1.0 + KILOBYTES}, "fast": {"words": WORDS},
    "slow": {"words": WORDS, "pause": SLOW}, "checkpoint": {"first": CHECKPOINT_SECONDS + 0.2},
}  # fmt: skip


async def measured() -> Costs:
    """All costs; takes five minutes or more."""
    with tempfile.TemporaryDirectory() as folder:
        async with reality(Path(folder), 1) as running:
            await running.ask("dial", turn(next(_numbers)))
            memory, growing = _memory(running), await _memory_of_runs(running)
            for door in DOORS:
                await _held(running, door, "call")  # warms up
            idle = await _idle(running)
            doors = {door: await _door(running, door, idle) for door in DOORS}
    other = {"agent_memory": memory, "run_memory": growing, **await other_costs()}
    return Costs(doors, idle, slowness(), other)


async def _door(running: Reality, door: str, idle: Cost) -> DoorCosts:
    rounds = defaultdict[str, list[Cost]](list)
    for _, kind in product(range(ROUNDS), KINDS):
        spent, seconds = await _held(running, door, kind)
        print(f"{door}, {kind}: {PEOPLE * TURNS} turns in {seconds:.0f} s", flush=True)
        rounds[kind].append((spent - idle * seconds) / (PEOPLE * TURNS))
    found = {kind: median(spent) for kind, spent in rounds.items()}
    streamed = (found["slow"] - found["fast"]) / ((SLOW - FAST) * (WORDS - 1))
    streamed = streamed.at_least_nothing
    checkpoint = (found["checkpoint"] - found["turn"]).at_least_nothing
    words = found["fast"] - found["turn"] - streamed * (FAST * (WORDS - 1)) - checkpoint
    return DoorCosts(
        turn=found["turn"].at_least_nothing,
        call=((found["call"] - found["turn"]) / CALLS).at_least_nothing,
        word=(words / (WORDS - 1)).at_least_nothing,
        kilobyte=((found["kilobyte"] - found["turn"]) / KILOBYTES).at_least_nothing,
        streamed=streamed,
        checkpoint=checkpoint,
    )


async def _held(running: Reality, door: str, kind: str) -> tuple[Cost, float]:
    before, began = await running.running.used(), perf_counter()

    async def converse(place: int) -> None:
        number = next(_numbers)
        await asyncio.sleep(place / PEOPLE)  # chunks of all in one moment would share the work of reading them
        for _ in range(TURNS):
            await running.ask(door, turn(number, **KINDS[kind]))

    await asyncio.gather(*(converse(place) for place in range(PEOPLE)))
    await asyncio.sleep(REST_SECONDS)
    return await running.running.used() - before, perf_counter() - began


async def _idle(running: Reality) -> Cost:
    before = await running.running.used()
    await asyncio.sleep(IDLE_SECONDS)
    return (await running.running.used() - before) / IDLE_SECONDS


async def _memory_of_runs(running: Reality) -> float:
    """Bytes that one more turn under way takes."""
    before = _memory(running)
    asked = [asyncio.create_task(running.ask("dial", turn(next(_numbers), words=WORDS))) for _ in range(OPEN)]
    await asyncio.sleep(WORDS * FAST / 2)
    during = _memory(running)
    await asyncio.gather(*asked)
    return max(during - before, 0) / OPEN


def _memory(running: Reality) -> float:
    return float(psutil.Process(running.running.agents[0].pid).memory_info().rss)
