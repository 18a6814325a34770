"""Turns on replicas: how many run at once, what they take, and how long work waits for its replica's core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from scripts.capacity.costs import Cost, DoorCosts
from scripts.capacity.workload import Turn


@dataclass(frozen=True, slots=True)
class Simulated:
    """What happens within so many seconds: `cost` of all turns that start in them, and of the replicas as such.

    `running` is the mean number of turns under way at once, `peak` the largest. `waits` are the seconds, in their
    order, that each piece of work waits until its replica has done what came before.
    """

    running: float
    peak: int
    cost: Cost
    waits: Sequence[float]

    def wait(self, share: float) -> float:
        """Seconds that this share of all work waits at most."""
        return self.waits[min(int(share * len(self.waits)), len(self.waits) - 1)] if self.waits else 0.0


def simulate(turns: Sequence[Turn], costs: DoorCosts, idle: Cost, replicas: int, seconds: float) -> Simulated:
    """The turns, each on the replica that has the fewest of them when it starts, as nginx chooses.

    A replica does one piece of work after the other, in the order in which they arrive. That work waits does not delay
    what the same turn brings later: times are the model's and the tools' own.
    """
    under_way: list[tuple[float, int]] = []
    counts, work = [0] * replicas, [list[tuple[float, float]]() for _ in range(replicas)]
    running, peak = 0.0, 0
    for turn in turns:
        while under_way and under_way[0][0] <= turn.start:
            counts[heappop(under_way)[1]] -= 1
        place = counts.index(min(counts))
        counts[place] += 1
        peak = max(peak, sum(counts))
        heappush(under_way, (turn.start + turn.seconds, place))
        running += max(min(turn.start + turn.seconds, seconds) - max(turn.start, 0.0), 0.0)
        work[place] += _pieces(turn, costs)
    waits = sorted(wait for pieces in work for wait in _waits(sorted(pieces), seconds))
    total = cost_of(turns, costs) + idle * seconds * replicas
    return Simulated(running / seconds, peak, total, waits)


def cost_of(turns: Sequence[Turn], costs: DoorCosts) -> Cost:
    """What the turns take."""
    return (
        costs.turn * len(turns)
        + costs.call * sum(len(turn.calls) for turn in turns)
        + costs.word * sum(turn.words for turn in turns)
        + costs.kilobyte * sum(turn.prompt_kilobytes * (1 + len(turn.calls)) for turn in turns)
        + costs.streamed * sum(turn.streamed for turn in turns)
        + costs.checkpoint * sum(turn.checkpoints for turn in turns)
    )


def _pieces(turn: Turn, costs: DoorCosts) -> list[tuple[float, float]]:
    at = turn.start
    found = [(at, costs.turn.agent + costs.kilobyte.agent * turn.prompt_kilobytes)]
    for call in turn.calls:
        at += call.written + call.seconds
        found.append((at, costs.call.agent))
    at += turn.first
    word = costs.word.agent + costs.streamed.agent * turn.pause
    found += ((at + number * turn.pause, word) for number in range(turn.words))
    return found


def _waits(pieces: Sequence[tuple[float, float]], seconds: float) -> Iterator[float]:
    free = -inf
    for at, takes in pieces:
        wait = max(free - at, 0.0)
        if 0 <= at < seconds:
            yield wait
        free = at + wait + takes
