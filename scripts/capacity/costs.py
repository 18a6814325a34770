"""What was measured: the cost of each piece of work, kept in evaluation/capacity.toml."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

FILE = Path(__file__).parents[2] / "evaluation" / "capacity.toml"
DOORS = {"dial": "DIAL", "sessions": "HTTP API"}
OPENING = """\
# What pieces of work cost, written by `python -m scripts.capacity --measure`: CPU in seconds, sizes in bytes.
# `statements` are all that PostgreSQL receives, BEGIN and COMMIT included; `rows` are those it writes.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one piece of work: CPU seconds of agents, of the processes they start, of PostgreSQL and of nginx; statements
    that PostgreSQL received, commits, written rows; bytes."""

    agent: float = 0.0
    children: float = 0.0
    postgres: float = 0.0
    nginx: float = 0.0
    statements: float = 0.0
    commits: float = 0.0
    rows: float = 0.0
    wal: float = 0.0
    size: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    def __sub__(self, other: Cost) -> Cost:
        return self + other * -1

    def __mul__(self, count: float) -> Cost:
        return Cost(*(getattr(self, item.name) * count for item in fields(self)))

    def __truediv__(self, count: float) -> Cost:
        return self * (1 / count)

    @property
    def cpu(self) -> float:
        """CPU seconds of everything."""
        return self.agent + self.children + self.postgres + self.nginx

    @property
    def at_least_nothing(self) -> Cost:
        """Without what is below zero, as a difference of two measurements can be."""
        return Cost(*(max(getattr(self, item.name), 0.0) for item in fields(self)))


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each figure."""
    return Cost(*(statistics.median(getattr(cost, item.name) for cost in costs) for item in fields(Cost)))


@dataclass(frozen=True, slots=True)
class DoorCosts:
    """Of a turn through one door: as such, for each call, word and kilobyte of its prompt, and each second it streams.

    An event of a run is part of `streamed`: events are written ten times a second, however many there are. `checkpoint`
    is of each time that its trace is kept before its end (`Turn.checkpoints`).
    """

    turn: Cost
    call: Cost
    word: Cost
    kilobyte: Cost
    streamed: Cost
    checkpoint: Cost


@dataclass(frozen=True, slots=True)
class Costs:
    """All that was measured. `idle` is what an agent takes in a second without work.

    `slowness` is the machine's calibration work ÷ the reference machine's (docs/performance.md); `other` has the rest
    by name: memory in bytes, CPU seconds of interpreter and index, Redis' commands.
    """

    doors: Mapping[str, DoorCosts]
    idle: Cost
    slowness: float
    other: Mapping[str, float]


def load(file: Path = FILE) -> Costs:
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    doors = {
        door: DoorCosts(**{item.name: Cost(**data[door][item.name]) for item in fields(DoorCosts)}) for door in DOORS
    }
    return Costs(doors, Cost(**data["idle"]), data["slowness"], data["other"])


def save(costs: Costs, file: Path = FILE) -> None:
    tables = {"idle": costs.idle} | {
        f"{door}.{item.name}": getattr(found, item.name)
        for door, found in costs.doors.items()
        for item in fields(found)
    }
    lines = [OPENING, f"slowness = {costs.slowness:.3g}"]
    for name, cost in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_number(value)}" for key, value in asdict(cost).items())]
    lines += ["", "[other]", *(f"{key} = {_number(value)}" for key, value in costs.other.items()), ""]
    file.write_text("\n".join(lines), encoding="utf-8")


def _number(value: float) -> str:
    return repr(float(f"{value:.3g}"))
