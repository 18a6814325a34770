"""One way to print measured figures: value, goal, ratio to the bare loop, peers; and to fail when a goal is missed.

A benchmark collects `Figure`s and calls `report(figures)`. With CHECK=1 in the environment `report` exits 1 when a
figure is more than 25 % over its goal; with JSON=1 it prints one JSON object per line instead of a table.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

TOLERANCE = 0.25
BUSY = 1.5  # programs per core that want to run


@dataclass(frozen=True, slots=True)
class Figure:
    """A median in `unit`. `goal` is the most it may be, with `at_least` the least.

    `bare` is what the bare loop took for the same work in the same run, `bare_goal` how many times that the figure may
    be. `judged` is off where the machine was too busy for the figure to mean anything. `peers` are quoted figures of
    other frameworks, not measured here.
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = False
    bare: float | None = None
    bare_goal: float | None = None
    judged: bool = True
    peers: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def ratio(self) -> float | None:
        return self.value / self.bare if self.bare else None

    @property
    def excess(self) -> float | None:
        """How far past its goal: 0.1 is 10 % worse, below 0 is better; None without a goal.

        Where both goals are given the more lenient one counts: on a slow machine the ratio, on a fast one the absolute.
        """
        shares: list[float] = []
        if self.goal is not None:
            shares.append(self.goal / self.value if self.at_least else self.value / self.goal)
        if self.bare_goal is not None and self.ratio is not None:
            shares.append(self.ratio / self.bare_goal)
        return min(shares) - 1 if shares else None

    @property
    def missed(self) -> bool:
        """Whether the goal is missed by more than a machine's noise."""
        return self.judged and self.excess is not None and self.excess > TOLERANCE


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


def report(figures: Sequence[Figure]) -> None:
    """Print the figures.

    Raises:
        SystemExit: with CHECK=1, when a figure is more than 25 % over its goal.
    """
    print("\n".join(map(_json if os.environ.get("JSON") == "1" else _row, figures)), flush=True)
    missed = [figure.name for figure in figures if figure.missed]
    if missed and os.environ.get("CHECK") == "1":
        sys.exit(f"more than {TOLERANCE:.0%} over the goal: {'; '.join(missed)}")


def _row(figure: Figure) -> str:
    bound = "≥" if figure.at_least else "≤"
    goal = f"goal {bound} {figure.goal:g}" if figure.goal is not None else ""
    bare = f"{figure.ratio:.1f} × bare {_short(figure.bare)}" if figure.ratio and figure.bare else ""
    bare += f" (goal ≤ {figure.bare_goal:g} ×)" if bare and figure.bare_goal else ""
    peers = ", ".join(f"{name} {value:g}" for name, value in figure.peers.items())
    row = f"{_verdict(figure)} {figure.name:44}{_short(figure.value):>8} {figure.unit:8}{goal:16}{bare}"
    return row.rstrip() + (f"\n{'':6}quoted: {peers}" if peers else "")


def _verdict(figure: Figure) -> str:
    """Blank within its goal, `~` a little over it, `!` more than 25 % over it, `?` over it on too busy a machine."""
    if figure.excess is None or figure.excess <= 0:
        return " "
    return "!" if figure.missed else "~" if figure.judged else "?"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _json(figure: Figure) -> str:
    fields = {
        name: getattr(figure, name)
        for name in ("name", "value", "unit", "goal", "at_least", "bare", "bare_goal", "judged")
    }
    document = {**fields, "ratio": figure.ratio, "excess": figure.excess, "peers": dict(figure.peers)}
    return json.dumps({name: value for name, value in document.items() if value not in (None, {})}, ensure_ascii=False)
