"""The test support itself: the fake clock, and documents described by the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.clock import FakeClock
from tests.support.openapi_document import faults, strict


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


OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
SENT = {"$ref": "#/components/schemas/Sent"}
FREE = {"type": "object", "additionalProperties": True}
DOCUMENT: dict[str, Any] = {
    "paths": {"/": {"post": {"requestBody": {"content": {"application/json": {"schema": SENT}}}}, "get": {}}},
    "components": {
        "schemas": {
            "Sent": {**OPEN, "properties": {"b": {"$ref": "#/components/schemas/Part"}}},
            "Part": {**OPEN},
            "Told": {**OPEN},
            "Free": FREE,
        }
    },
}


def test_only_what_is_answered_is_closed() -> None:
    schemas = strict(DOCUMENT)["components"]["schemas"]
    assert {name: schema["additionalProperties"] for name, schema in schemas.items()} == {
        "Sent": True, "Part": True, "Told": False, "Free": True,
    }  # fmt: skip


def test_a_field_that_is_not_described_is_a_fault() -> None:
    assert faults(DOCUMENT, "Told", {"a": 1}) == []
    assert "'c'" in faults(DOCUMENT, "Told", {"a": 1, "c": 2})[0]
