"""How many machines how many people need; docs/capacity.md.

`python -m scripts.capacity` prints the needs of 10³ to 10⁷ daily users, `--users N …` those of others.
`--measure` measures the costs of pieces of work on this machine into evaluation/capacity.toml. `--check` holds the same
turns in the simulation and with real agents, prints both, and exits 1 where they differ by more than 20 %; with
`--write` the page gets the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
from collections.abc import Sequence
from math import inf

from scripts.capacity.checking import TOLERANCE, Compared, compared
from scripts.capacity.costs import DOORS, Costs, load, save
from scripts.capacity.measuring import measured
from scripts.capacity.model import Model
from scripts.capacity.page import CHECKED, USERS, sizes, table

AGENTS = (1, 2)
HEAD = ("door", "agents", "figure", "simulated", "measured", "simulated ÷ measured")


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        prog="python -m scripts.capacity", description="How many machines how many people need."
    )
    options.add_argument("--users", type=float, nargs="+", default=USERS, help="daily users")
    options.add_argument("--measure", action="store_true", help="measure what pieces of work cost, in five minutes")
    options.add_argument("--check", action="store_true", help="compare the simulation with a real run")
    options.add_argument("--write", action="store_true", help="with --check: keep the figures for the page")
    options.add_argument("--rate", type=float, default=6.0, help="turns a second of the real run")
    options.add_argument("--seconds", type=float, default=20.0, help="how long it takes")
    options.add_argument("--speed", type=float, default=4.0, help="how many times as fast its model and people are")
    given = options.parse_args(arguments)
    if not all(0 < value < inf for value in (*given.users, given.rate, given.seconds, given.speed)):
        options.error("users, rate, seconds and speed are numbers above 0")
    if given.measure:
        save(asyncio.run(measured()))
        return 0
    costs = load()
    if given.check:
        return asyncio.run(check(costs, given.rate, given.seconds, given.speed, write=given.write))
    for door, name in DOORS.items():
        print(f"{name}:\n\n{sizes(Model(costs, door), given.users)}\n")
    return 0


async def check(costs: Costs, rate: float, seconds: float, speed: float, *, write: bool) -> int:
    rows, wrong = list[list[str]](), list[str]()
    for door, name in DOORS.items():
        for agents in AGENTS:
            for figure in await compared(costs, door, agents=agents, rate=rate, seconds=seconds, speed=speed):
                rows.append([name, str(agents), *cells(figure)])
                if figure.judged and abs(figure.difference) > TOLERANCE:
                    wrong.append(f"{name}, {agents}: {figure.name}")
    print(table(HEAD, rows))
    if write:
        with CHECKED.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])
    for name in wrong:
        print(f"more than {TOLERANCE:.0%} apart: {name}", file=sys.stderr)
    return int(bool(wrong))


def cells(figure: Compared) -> list[str]:
    both = (f"{value:.3g} {figure.unit}".rstrip() for value in (figure.simulated, figure.measured))
    return [figure.name, *both, f"{1 + figure.difference:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
