"""A small version of `python -m scripts.capacity --check`: the same turns in the simulation and with real agents."""

from __future__ import annotations

import pytest

from scripts.capacity.checking import compared
from scripts.capacity.costs import load

pytestmark = pytest.mark.system
# A run of seconds beside other tests: CPU and the turns that wait for it depend on the machine, statements and rows do
# not. The command judges all by 20 %.
MOST_APART = {"statements": 0.35, "rows written": 0.35}


@pytest.mark.parametrize(("door", "agents"), [("dial", 1), ("sessions", 2)])
async def test_the_simulation_and_real_agents_come_to_the_same(door: str, agents: int) -> None:
    found = await compared(load(), door, agents=agents, rate=5, seconds=10, speed=4)
    apart = {figure.name: figure.difference for figure in found if figure.name in MOST_APART}
    assert apart.keys() == MOST_APART.keys()
    assert found[0].name == "turns under way"
    assert found[0].measured > 0.7 * found[0].simulated  # no fewer than the model's own times give
    assert {name: difference for name, difference in apart.items() if abs(difference) > MOST_APART[name]} == {}
