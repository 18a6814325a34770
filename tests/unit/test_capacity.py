"""The capacity model: conversations as assumed, replicas that do one thing at a time, needs that grow with people."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.capacity.__main__ import main
from scripts.capacity.assumptions import Assumptions, LogNormal
from scripts.capacity.costs import Cost, Costs, DoorCosts, load, save
from scripts.capacity.model import ENGINES, Model
from scripts.capacity.simulation import simulate
from scripts.capacity.workload import Call, Turn, busy_rate, turns

DAILY = 10_000
NOTHING = Cost()
COSTS = DoorCosts(
    Cost(agent=0.1, statements=3), Cost(agent=0.02), Cost(agent=0.01), NOTHING, Cost(rows=10), Cost(wal=1000)
)  # fmt: skip


def turn(start: float = 0.0, *, words: int = 1, calls: int = 0) -> Turn:
    return Turn(start, 1, (Call("code", 0.5, 0.5),) * calls, 1.0, words, 0.1, 1.0)


def test_a_distribution_has_the_median_and_the_95th_percentile_that_are_assumed() -> None:
    chosen, distribution = random.Random(3), LogNormal(25, 180)
    drawn = sorted(distribution.draw(chosen) for _ in range(20_000))
    assert statistics.median(drawn) == pytest.approx(25, rel=0.05)
    assert drawn[19_000] == pytest.approx(180, rel=0.05)
    assert statistics.mean(drawn) == pytest.approx(distribution.mean, rel=0.05)


def test_a_busy_hour_has_as_many_turns_as_its_people_start_and_the_same_seed_gives_the_same() -> None:
    assumed = Assumptions()
    found = turns(assumed, busy_rate(assumed, DAILY), 600, seed=5)
    expected = DAILY * assumed.conversations_a_day * assumed.busy_hour * assumed.turns * 600 / 3600
    assert len(found) == pytest.approx(expected, rel=0.15)
    assert found == turns(assumed, busy_rate(assumed, DAILY), 600, seed=5)
    assert all(0 <= earlier.start <= later.start < 600 for earlier, later in pairwise(found))


def test_with_speed_the_same_turns_come_sooner_and_pass_faster() -> None:
    usual, faster = (turns(Assumptions(), 0.3, 100 / speed, seed=5, speed=speed) for speed in (1, 4))
    assert [(item.words, len(item.calls)) for item in usual] == [(item.words, len(item.calls)) for item in faster]
    assert [item.start / 4 for item in usual] == pytest.approx([item.start for item in faster])
    assert [item.seconds / 4 for item in usual] == pytest.approx([item.seconds for item in faster])


def test_turns_under_way_follow_from_their_rate_and_their_seconds() -> None:
    found = turns(Assumptions(), 0.5, 600, seed=7)
    simulated = simulate(found, COSTS, NOTHING, 4, 600)
    little = len(found) / 600 * statistics.mean(item.seconds for item in found)
    assert simulated.running == pytest.approx(little, rel=0.1)
    assert simulated.peak > simulated.running


def test_what_turns_take_is_the_sum_of_their_pieces_and_of_idle_replicas() -> None:
    found = simulate([turn(words=11, calls=2)], COSTS, Cost(statements=4), 3, seconds=10)
    assert found.cost.agent == pytest.approx(0.1 + 2 * 0.02 + 11 * 0.01)
    assert found.cost.statements == 3 + 4 * 3 * 10
    assert found.cost.rows == pytest.approx(10 * 1.0)  # a second of streaming
    assert found.cost.wal == 1000 * 2  # its trace, 1 and 2.5 seconds after its start
    assert found.wait(1) == 0


@pytest.mark.parametrize(
    ("calls", "first", "expected"),
    [
        ([], 0.9, 0), ([], 1.1, 1), ([], 60.0, 1),  # nothing changes while the model is silent
        ([(0.5, 0.1)], 0.3, 0), ([(0.5, 0.1)], 0.6, 1),
        ([(1.5, 0.1)], 0.5, 1), ([(1.5, 0.1)], 1.1, 2), ([(1.5, 2.0)], 0.1, 2), ([(1.5, 2.0)], 2.0, 3),
    ],
)  # fmt: skip
def test_a_turn_is_kept_a_second_after_its_start_and_after_each_change(
    calls: list[tuple[float, float]], first: float, expected: int
) -> None:
    made = tuple(Call("other", written, seconds) for written, seconds in calls)
    assert Turn(0.0, 1, made, first, 1, 0.1, 1.0).checkpoints == expected


def test_work_waits_for_its_replica_and_another_replica_takes_it() -> None:
    together = [turn(0.0), turn(0.0)]
    one, two = (simulate(together, COSTS, NOTHING, replicas, seconds=10) for replicas in (1, 2))
    assert one.wait(1) == pytest.approx(0.1)
    assert two.wait(1) == 0


def test_what_streaming_takes_lets_words_wait() -> None:
    streaming = DoorCosts(NOTHING, NOTHING, NOTHING, NOTHING, Cost(agent=2.0), NOTHING)
    found = simulate([turn(words=11)], streaming, NOTHING, 1, seconds=10)  # each of 0.1 s takes 0.2
    assert found.wait(1) == pytest.approx(1.0)


@pytest.mark.parametrize("door", ["dial", "sessions"])
def test_the_replicas_that_remain_carry_everything_when_one_dies(door: str) -> None:
    model = Model(load(), door)
    for users in (10, 1e4, 1e5, 2e5, 1e6):
        need = model.sizing(users)
        assert need.agent_cores / (need.replicas - 1) <= 1, users


@pytest.mark.parametrize("door", ["dial", "sessions"])
def test_ten_times_the_people_need_ten_times_as_much_and_two_replicas_at_least(door: str) -> None:
    model = Model(load(), door)
    few, many, more = model.sizing(10), model.sizing(1e6), model.sizing(1e7)
    assert few.replicas == 2
    assert more.turns == pytest.approx(10 * many.turns)
    assert more.replicas == pytest.approx(10 * many.replicas, rel=0.1)
    assert more.price == pytest.approx(10 * many.price, rel=0.1)
    assert many.agent_cores / many.replicas <= model.assumed.load


def test_a_busier_replica_lets_work_wait_longer() -> None:
    model = Model(load(), "dial")
    calm, busy = (model.queueing(share).wait(0.99) for share in (0.3, 0.9))
    assert calm < busy


def test_an_engine_has_the_assumed_load_with_the_people_at_whom_it_saturates() -> None:
    model = Model(load(), "dial")
    _, need = ENGINES["PostgreSQL, cores"]
    people = model.saturates(32, need)
    assert need(model.sizing(people)) == pytest.approx(32 * model.assumed.load, rel=0.02)


def test_costs_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = Costs({"dial": COSTS, "sessions": COSTS}, Cost(agent=0.003), 1.25, {"kernel": 0.5})
    save(written, tmp_path / "costs.toml")
    assert load(tmp_path / "costs.toml") == written


def test_the_command_prints_the_needs_of_any_number_of_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--users", "50000"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| daily users | 50,000 |") == 2  # one table for each door
    assert printed.count("agents, replicas") == 2


@pytest.mark.fault("capacity: a number of people, a rate or a speed that is not above 0")
@pytest.mark.parametrize(
    "wrong", [("--users", "0"), ("--users", "many"), ("--users", "nan"), ("--check", "--speed", "-1")]
)
def test_a_wrong_number_is_refused_with_a_sentence(wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(wrong)
    assert "error:" in capsys.readouterr().err
