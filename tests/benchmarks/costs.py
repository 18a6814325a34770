"""What work costs: CPU of the agents and their engines, statements, rows and bytes, to be added and compared."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields


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


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each figure."""
    return Cost(*(statistics.median(getattr(cost, item.name) for cost in costs) for item in fields(Cost)))
