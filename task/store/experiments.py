"""Experiments: the figures of each variant, summed from its traces, and how the variants differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from sqlalchemy import Row, func, select

from task.errors import NotFound
from task.store import tables
from task.store.database import Database
from task.store.intervals import Difference, of_means, of_percentiles, of_shares, percentile

FAILED = ("failed", "interrupted")
_traces = tables.traces.c


@dataclass(frozen=True, slots=True)
class Label:
    """An experiment's label, how many traces have it, and when the newest of them began."""

    label: str
    count: int
    last_at: float


@dataclass(frozen=True, slots=True)
class Variant:
    """The figures of the traces with one label and one model; running ones are not counted.

    `priced` of them have a known cost; `cost` sums these, and is None where there are none. Times are milliseconds.
    `differences` are those from the first variant, by the name of the figure.
    """

    label: str
    model: str
    count: int
    failures: int
    tokens: int
    mean_tokens: float
    priced: int
    cost: float | None
    mean_cost: float | None
    p50_ms: float | None
    p95_ms: float | None
    up: int
    down: int
    differences: dict[str, Difference] = field(default_factory=dict[str, Difference])


async def labels(database: Database, owner: str | None) -> list[Label]:
    """The labels of the owner's traces (None: of everybody's), the last used first."""
    last = func.max(_traces.started_at)
    query = select(_traces.experiment, func.count(), last).where(_traces.experiment.is_not(None))
    query = query if owner is None else query.where(_traces.owner == owner)
    rows = await database.rows(query.group_by(_traces.experiment).order_by(last.desc()))
    return [Label(*row) for row in rows]


async def variants(database: Database, owner: str | None, names: Sequence[str]) -> list[Variant]:
    """The variants of these experiments; of the experiment `x` are the labels `x`, `x/a`, `x/b` and so on.

    Raises:
        NotFound: the owner has no traces of an experiment of that name.
    """
    known = [item.label for item in await labels(database, owner)]
    groups: list[_Group] = []
    for name in dict.fromkeys(names):
        found = sorted(label for label in known if label == name or label.startswith(f"{name}/"))
        if not found:
            raise NotFound(f"there are no traces of an experiment {name!r}")
        groups += await _groups(database, owner, found)
    return await asyncio.to_thread(_compared, groups)


@dataclass(slots=True)
class _Group:
    label: str
    model: str
    count: int = 0
    failures: int = 0
    tokens: list[int] = field(default_factory=list[int])
    costs: list[float] = field(default_factory=list[float])
    times: list[float] = field(default_factory=list[float])
    up: int = 0
    down: int = 0

    def add(self, row: Row[Any]) -> None:
        self.count += 1
        self.failures += row.status in FAILED
        self.tokens.append(row.total_tokens)
        self.costs += [row.cost] if row.cost is not None else []
        self.times += [(row.completed_at - row.started_at) * 1000] if row.completed_at is not None else []
        self.up += row.rating == "up"
        self.down += row.rating == "down"


async def _groups(database: Database, owner: str | None, found: Sequence[str]) -> list[_Group]:
    query = select(
        _traces.experiment, _traces.model, _traces.status, _traces.total_tokens, _traces.cost, _traces.started_at,
        _traces.completed_at, _traces.rating,
    ).where(_traces.experiment.in_(found), _traces.status != "running")  # fmt: skip
    groups: dict[tuple[str, str], _Group] = {}
    for row in await database.rows(query if owner is None else query.where(_traces.owner == owner)):
        groups.setdefault((row.experiment, row.model), _Group(row.experiment, row.model)).add(row)
    return [groups[key] for key in sorted(groups)]


def _compared(groups: Sequence[_Group]) -> list[Variant]:
    return [_variant(group, groups[0] if group is not groups[0] else None) for group in groups]


def _variant(group: _Group, first: _Group | None) -> Variant:
    times = sorted(group.times)
    return Variant(
        group.label, group.model, group.count, group.failures, sum(group.tokens), fmean(group.tokens),
        len(group.costs), sum(group.costs) if group.costs else None, fmean(group.costs) if group.costs else None,
        percentile(times, 0.5) if times else None, percentile(times, 0.95) if times else None, group.up, group.down,
        _differences(group, first) if first is not None else {},
    )  # fmt: skip


def _differences(one: _Group, first: _Group) -> dict[str, Difference]:
    found = {
        "failures": of_shares(one.failures, one.count, first.failures, first.count),
        "mean_tokens": of_means(one.tokens, first.tokens),
        "mean_cost": of_means(one.costs, first.costs),
        "p50_ms": of_percentiles(one.times, first.times, 0.5),
        "p95_ms": of_percentiles(one.times, first.times, 0.95),
        "up": of_shares(one.up, one.up + one.down, first.up, first.up + first.down),
    }
    return {name: difference for name, difference in found.items() if difference is not None}
