"""Compare the simulation with a real run of the very same turns."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.capacity.assumptions import Assumptions
from scripts.capacity.costs import Cost, Costs
from scripts.capacity.reality import reality
from scripts.capacity.simulation import simulate
from scripts.capacity.workload import turns
from tests.benchmarks.calibration import slowness

TOLERANCE, WARM_SECONDS = 0.2, 3.0
SEED = 26


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure as simulated and as measured. `judged`: they may differ by the tolerance at most."""

    name: str
    unit: str
    simulated: float
    measured: float
    judged: bool = True

    @property
    def difference(self) -> float:
        """Simulated ÷ measured − 1."""
        return self.simulated / self.measured - 1 if self.measured else float(bool(self.simulated))


async def compared(
    costs: Costs, door: str, *, agents: int, rate: float, seconds: float, speed: float
) -> list[Compared]:
    """`rate` turns start in a second, through that door, before so many agents; time runs `speed` times as fast."""
    assumed = Assumptions()
    planned = turns(assumed, rate / assumed.turns / speed, seconds, SEED, speed)
    with tempfile.TemporaryDirectory() as folder:
        async with reality(Path(folder), agents) as running:
            warming = turns(assumed, 2 * rate / assumed.turns / speed, WARM_SECONDS, SEED + 1, speed)
            await running.hold(door, warming, WARM_SECONDS)
            measured, under_way = await running.hold(door, planned, seconds)
    found = simulate(planned, costs.doors[door], costs.idle, agents, seconds)
    cost = at_this_speed(found.cost, slowness() / costs.slowness)
    return [
        Compared("turns under way", "", found.running, under_way),
        Compared("CPU of the agents", "s", cost.agent, measured.agent),
        Compared("statements", "", cost.statements, measured.statements),
        Compared("CPU of PostgreSQL", "s", cost.postgres, measured.postgres, judged=False),
        Compared("CPU of nginx", "s", cost.nginx, measured.nginx, judged=False),
        Compared("rows written", "", cost.rows, measured.rows),
        Compared("WAL", "MB", cost.wal / 1e6, measured.wal / 1e6, judged=False),
    ]


def at_this_speed(cost: Cost, slower: float) -> Cost:
    """The cost where the same work takes so many times the CPU."""
    return replace(
        cost, agent=cost.agent * slower, postgres=cost.postgres * slower, nginx=cost.nginx * slower
    )  # fmt: skip
