"""The line in which calls wait for a place to run."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from mcp_servers.python_interpreter.line import Line, NoPlace, Ticket

PATIENCE = 25.0


@pytest.mark.fault("interpreter: more calls of code than may run")
async def test_calls_get_their_places_in_the_order_in_which_they_came() -> None:
    line, order = Line(2), list[str]()

    async def call(owner: str, began: asyncio.Event, end: asyncio.Event) -> None:
        async with line.place(Ticket(owner), PATIENCE):
            order.append(owner)
            began.set()
            await end.wait()

    events = [(asyncio.Event(), asyncio.Event()) for _ in "abcd"]
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for owner, (began, end) in zip("abcd", events, strict=True):
            group.create_task(call(owner, began, end))
        for began, end in events:
            await began.wait()
            end.set()
    assert order == list("abcd")


@pytest.mark.fault("interpreter: a call cancelled while it waits for a kernel")
async def test_a_waiting_call_knows_its_place_and_one_that_gives_up_leaves_the_line() -> None:
    line = Line(1)
    first, second, third = Ticket("a"), Ticket("b"), Ticket("c")
    async with AsyncExitStack() as held:
        await held.enter_async_context(line.place(first, PATIENCE))
        waiting = [asyncio.create_task(entered(line, ticket)) for ticket in (second, third)]
        await asyncio.sleep(0)
        assert [(ticket.place, ticket.length) for ticket in (first, second, third)] == [(0, 0), (1, 2), (2, 2)]
        second.give_up()
        with pytest.raises(NoPlace, match="cancelled"):
            await waiting[0]
        assert (third.place, third.length) == (1, 1)
    await asyncio.wait_for(waiting[1], PATIENCE)
    with pytest.raises(NoPlace, match="cancelled"):
        await entered(line, second)
    assert third.waited > 0


@pytest.mark.fault("interpreter: one person whose calls take all places")
async def test_who_has_half_of_the_places_is_passed_over() -> None:
    line = Line(4)
    async with AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(line.place(Ticket("greedy"), PATIENCE))
        third = asyncio.create_task(entered(line, Ticket("greedy")))
        await asyncio.wait_for(entered(line, Ticket("other")), PATIENCE)
        assert not third.done()
    await asyncio.wait_for(third, PATIENCE)


@pytest.mark.fault("interpreter: a wait for a kernel that takes too long")
async def test_a_wait_ends_with_its_time_and_a_cancelled_one_frees_no_place_that_it_did_not_have() -> None:
    line = Line(1)
    async with line.place(Ticket("a"), PATIENCE):
        with pytest.raises(NoPlace, match="no kernel became free within 0 seconds"):
            await entered(line, Ticket("b"), 0.01)
        cancelled = asyncio.create_task(entered(line, Ticket("c")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        with pytest.raises(NoPlace):
            await entered(line, Ticket("d"), 0.01)
    await entered(line, Ticket("e"))


async def entered(line: Line, ticket: Ticket, seconds: float = PATIENCE) -> None:
    async with line.place(ticket, seconds):
        pass
