"""The fake clock wakes sleepers when their time has come, in order, and never by itself."""

from __future__ import annotations

import asyncio

from tests.support.clock import FakeClock


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock, woken = FakeClock(100.0), list[tuple[str, float]]()

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.now()))

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(sleeper("slow", 5.0))
        group.create_task(sleeper("often", 2.0, 2.0))
        await clock.advance(1.0)
        assert (woken, clock.now()) == ([], 101.0)
        await clock.advance(3.5)
        assert woken == [("often", 102.0), ("often", 104.0)]
        await clock.advance(10.0)
    assert woken[-1] == ("slow", 105.0)
    assert clock.now() == 114.5


async def test_a_running_clock_moves_with_every_sleep() -> None:
    clock = FakeClock(runs=True)
    await clock.sleep(2.0)
    await clock.sleep(0.5)
    assert (clock.now(), clock.slept) == (2.5, [2.0, 0.5])
