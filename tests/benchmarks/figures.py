"""One way to print measured figures, and to fail when a goal is missed.

A benchmark collects `Figure`s and calls `report(figures)`. With CHECK=1 in the environment `report` exits 1 when a
figure is more than its tolerance over its goal; with JSON=1 it prints one JSON object per line instead of a table.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

TOLERANCE = 0.10
BUSY = 1.5  # programs per core that want to run
TIMES = frozenset({"s", "ms", "µs"})
# The calibration work says how fast this machine is, so that goals in seconds hold on any other.
REFERENCE_SECONDS = 0.00226  # of CPU for it, on the machine on which the goals were set
ROUNDS = 81
_DOCUMENT = {"messages": [{"role": "user", "content": f"words of a message {number}"} for number in range(200)]}


@cache
def slowness() -> float:
    """How many times as long as the reference machine this one takes; measured once, in a fifth of a second."""

    def seconds() -> float:
        started = process_time()
        words: dict[str, int] = {}
        for _ in range(10):
            for message in json.loads(json.dumps(_DOCUMENT))["messages"]:
                for word in message["content"].split():
                    words[word] = words.get(word, 0) + len(word)
        assert len(words) == 204
        return process_time() - started

    return statistics.median(seconds() for _ in range(ROUNDS)) / REFERENCE_SECONDS


@dataclass(frozen=True, slots=True)
class Figure:
    """A median in `unit`, and at most one goal, which is always judged as a ratio of one run.

    `goal` is the most it may be, with `at_least` the least; times and rates as on the reference machine: where the
    calibration work takes longer, they may be worse to the same extent. `bare` is what the bare loop, or a library,
    took for the same work in the same run, `bare_goal` how many times that the figure may be. `judged` is off where
    the machine was too busy for the figure to mean anything. `tolerance` is the share
    of the goal that counts as a machine's noise.
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = False
    bare: float | None = None
    bare_goal: float | None = None
    judged: bool = True
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if self.goal is not None and self.bare_goal is not None:
            raise ValueError(f"{self.name!r} has two goals; the ratio alone decides")
        if self.bare_goal is not None and not self.bare:
            raise ValueError(f"{self.name!r} has nothing to be {self.bare_goal:g} times of")
        if self.tolerance > TOLERANCE:
            raise ValueError(f"{self.name!r} has a tolerance of {self.tolerance:.0%}; the most is {TOLERANCE:.0%}")

    @property
    def ratio(self) -> float | None:
        return self.value / self.bare if self.bare else None

    def goal_here(self, slow: float) -> float | None:
        """The goal on a machine that takes `slow` times as long as the reference machine."""
        if self.goal is None:
            return None
        factor = slow if self.unit in TIMES else 1 / slow if self.unit.endswith("/s") else 1.0
        return self.goal * factor

    def excess(self, slow: float) -> float | None:
        """How far past its goal on such a machine: 0.1 is 10 % worse, below 0 is better; None without a goal."""
        if self.bare_goal is not None and self.ratio is not None:
            return self.ratio / self.bare_goal - 1
        goal = self.goal_here(slow)
        if goal is None:
            return None
        if not goal:
            return float("inf") if self.value > 0 else 0.0
        return (goal / self.value if self.at_least else self.value / goal) - 1

    def missed(self, slow: float) -> bool:
        """Whether the goal is missed by more than a machine's noise."""
        excess = self.excess(slow)
        return self.judged and excess is not None and excess > self.tolerance


def quiet_machine() -> bool:
    """Whether a wall-clock figure describes the agent rather than what else runs on this machine."""
    return os.getloadavg()[0] < BUSY * (os.cpu_count() or 1)


async def median_seconds(
    work: Callable[[], Awaitable[object]], times: int, clock: Callable[[], float] = perf_counter
) -> float:
    seconds: list[float] = []
    for _ in range(times):
        started = clock()
        await work()
        seconds.append(clock() - started)
    return statistics.median(seconds)


def measure_and_report(
    measured: Callable[[Path], Coroutine[Any, Any, Sequence[Figure]]],
    run: Callable[[Coroutine[Any, Any, Sequence[Figure]]], Sequence[Figure]] = asyncio.run,
) -> None:
    """Report what is measured in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report(run(measured(Path(folder))))


def report(figures: Sequence[Figure], slow: float | None = None, *, check: bool = False) -> None:
    """Print the figures; `slow` is how many times as long as the reference machine this one takes, else measured.

    Raises:
        SystemExit: with CHECK=1 or `check`, when a figure is more than its tolerance over its goal.
    """
    slow = slowness() if slow is None else slow
    figures = [*figures, Figure("calibration work ÷ the reference machine's", slow, "")]
    render = _json if os.environ.get("JSON") == "1" else _row
    print("\n".join(render(figure, slow) for figure in figures), flush=True)
    missed = [figure.name for figure in figures if figure.missed(slow)]
    if missed and (check or os.environ.get("CHECK") == "1"):
        sys.exit(f"over the goal by more than the tolerance: {'; '.join(missed)}")


def _row(figure: Figure, slow: float) -> str:
    bound, goal_here = "≥" if figure.at_least else "≤", figure.goal_here(slow)
    goal = f"goal {bound} {_short(goal_here)}" if goal_here is not None else ""
    bare = f"{_short(figure.ratio)} × bare {_short(figure.bare)}" if figure.ratio and figure.bare else ""
    bare += f" (goal ≤ {figure.bare_goal:g} ×)" if bare and figure.bare_goal else ""
    row = f"{_verdict(figure, slow)} {figure.name:44}{_short(figure.value):>8} {figure.unit:8}{goal:16}{bare}"
    return row.rstrip()


def _verdict(figure: Figure, slow: float) -> str:
    """Blank within its goal, `~` over it within the tolerance, `!` beyond that, `?` over it on too busy a machine."""
    if (figure.excess(slow) or 0) <= 0:
        return " "
    return "!" if figure.missed(slow) else "~" if figure.judged else "?"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _json(figure: Figure, slow: float) -> str:
    fields = {
        name: getattr(figure, name)
        for name in ("name", "value", "unit", "goal", "at_least", "bare", "bare_goal", "judged", "ratio")
    }
    judged = {"goal_here": figure.goal_here(slow), "excess": figure.excess(slow)}
    document = {name: value for name, value in (fields | judged).items() if value is not None}
    return json.dumps(document, ensure_ascii=False)
