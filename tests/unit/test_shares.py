"""Pools of all callers: each has its share of the places, and further work of one does not hold up another's."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextvars import copy_context
from threading import Event
from typing import Any

import pytest

from task.shares import ON_BEHALF_OF, SharedThreads, Shares

SECONDS = 20


@pytest.fixture
def gate() -> Iterator[Event]:
    """What work waits for; open at the end of a test, whatever has failed."""
    event = Event()
    yield event
    event.set()


def submitted(threads: SharedThreads, caller: str, work: Any, *arguments: Any) -> Future[Any]:
    def submit() -> Future[Any]:
        ON_BEHALF_OF.set(caller)
        return threads.submit(work, *arguments)

    return copy_context().run(submit)


@pytest.mark.fault("http api: one caller's work takes all threads")
def test_a_callers_work_leaves_threads_to_others_and_is_done_when_its_threads_are_no_longer_kept(gate: Event) -> None:
    threads = SharedThreads()
    blocked = [submitted(threads, "anna", gate.wait, SECONDS) for _ in range(50)]
    others = [submitted(threads, f"user {number}", str, number) for number in range(100)]
    assert [future.result(SECONDS) for future in others] == list(map(str, range(100)))
    assert not wait(blocked, 0).done
    gate.set()
    assert [future.result(SECONDS) for future in blocked] == [True] * 50


async def test_an_error_reaches_who_waits_and_the_thread_works_on() -> None:
    asyncio.get_running_loop().set_default_executor(SharedThreads())
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 / 0)
    assert await asyncio.to_thread(ON_BEHALF_OF.get) == ""


async def test_a_caller_has_half_of_the_places_and_waits_for_more() -> None:
    places, opened, inside = Shares(3), asyncio.Event(), list[str]()

    async def use(caller: str) -> None:
        async with places.place(caller):
            inside.append(caller)
            await opened.wait()

    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        for caller in ("anna", "anna", "anna", "bob", "bob"):
            group.create_task(use(caller))
        while len(inside) < 3:
            await asyncio.sleep(0)
        assert inside == ["anna", "anna", "bob"]
        opened.set()
    assert sorted(inside) == ["anna"] * 3 + ["bob"] * 2
