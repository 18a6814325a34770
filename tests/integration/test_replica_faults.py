"""Three agents on one PostgreSQL and one Redis behind HAProxy: each fault under load, and a replica that is frozen."""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio

from tests.benchmarks import processes
from tests.benchmarks.scale import CLOCKS, variables
from tests.benchmarks.scale_audit import audit, unsettled
from tests.benchmarks.scale_faults import Faults
from tests.benchmarks.scale_people import Person
from tests.support.cluster import Cluster, cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]
PEOPLE, SPELL, WORDS = 4, 3.0, 20
QUICK = {"AGENT_SHUTDOWN_SECONDS": "4"}
BROKEN_OFF = {"interrupted", "cancelled"}
AWAY = {
    "HTTP 502",
    "HTTP 503",
    "HTTP 504",
    "ClientPayloadError",
    "ServerDisconnectedError",
    "ClientOSError",
    "HTTP 409",
}
# What a person may notice beside a pause, after one more try.
EFFECTS = {
    "kill": BROKEN_OFF | AWAY,
    "roll_out": BROKEN_OFF | AWAY,
    "restart_database": AWAY | {"an error in the stream"},
    "lose_redis": set[str](),
    "freeze": set[str](),
    "cut_off": AWAY,
    "migrate": set[str](),
}


@dataclass
class World:
    cluster: Cluster
    session: aiohttp.ClientSession
    numbers: Iterator[int] = field(default_factory=count)

    async def people(self, count: int) -> list[Person]:
        """New people, each with a key; they do not think for long."""
        keys = await self.cluster.keys([f"person-{uuid4().hex[:8]}" for _ in range(count)])
        return [Person(next(self.numbers), self.cluster.url, key, self.session, (0.1, 0.4), WORDS) for key in keys]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    timeout = aiohttp.ClientTimeout(100)
    async with (
        processes.upstream(core=None) as upstream,
        cluster(tmp_path_factory.mktemp("cluster"), variables(upstream) | QUICK, clocks=CLOCKS) as made,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        yield World(made, session)


async def begun(people: Sequence[Person], more: int) -> None:
    """Wait until each has begun so many more turns."""
    before = [len(person.turns) for person in people]
    await until(
        lambda: not any(len(person.turns) < count + more for person, count in zip(people, before, strict=True)), 150
    )


@pytest.mark.fault("store: a replica that is killed under load", case="kill")
@pytest.mark.fault("store: a roll-out under load", case="roll_out")
@pytest.mark.fault("store: a database that restarts under load", case="restart_database")
@pytest.mark.fault("store: Redis gone and back under load", case="lose_redis")
@pytest.mark.fault("store: a replica frozen for a while", case="freeze")
@pytest.mark.fault("store: a replica cut off from the database", case="cut_off")
@pytest.mark.fault("store: a migration under load, and clocks of agents five minutes apart", case="migrate")
@pytest.mark.parametrize("kind", EFFECTS)
async def test_under_load_a_fault_loses_nothing_and_nothing_is_done_twice(world: World, kind: str) -> None:
    people, faults = await world.people(PEOPLE), Faults(world.cluster, random.Random(kind), SPELL)
    stopping = asyncio.Event()
    talking = [asyncio.create_task(person.converse(1, stopping)) for person in people]
    await begun(people, 1)
    await faults.once(kind)
    await begun(people, 2)  # what happened is followed by more answers
    stopping.set()
    await asyncio.wait_for(asyncio.gather(*talking), 200)
    assert await unsettled(people) == []
    report = await audit(people, world.cluster.notes())
    turns = [turn for person in people for turn in person.turns]
    assert (report.lost, report.duplicated, report.failed) == ({}, {}, {}), report.examples
    assert {turn.refused for turn in turns if turn.refused} <= EFFECTS[kind]
    assert any(turn.seconds is not None for turn in turns)


@pytest.mark.fault("store: a replica frozen for a while")
async def test_a_replica_that_was_frozen_until_others_ended_its_run_does_nothing_more_for_it(world: World) -> None:
    [person], [frozen, other, *_] = await world.people(1), world.cluster.replicas
    session_id = (await person.sent("/session/start", {}, "start"))["session_id"]
    body = {"session_id": session_id, "messages": [{"role": "user", "content": "record frozen 200 100"}]}
    at = replace(person, url=frozen.url)
    run_id = (await at.sent("/runs", body, "frozen"))["run_id"]
    async with asyncio.timeout(60), aclosing(replace(person, url=other.url).live(run_id)) as events:
        while (await anext(events))["type"] != "text":  # what another replica sees is stored
            pass
    frozen.freeze()
    try:
        async with asyncio.timeout(90):  # at another one: the balancer may lead a request to the frozen one
            ended = await replace(person, url=other.url).events(run_id)
    finally:
        frozen.wake()
    assert ended[-1]["status"] == "interrupted"
    before = await person.read(f"/session/{session_id}")
    async with asyncio.timeout(30):
        await at.events(run_id)  # of a run that it still has, to its end
    assert (await person.read(f"/session/{session_id}"))["messages"] == before["messages"]
    assert await person.events(run_id) == ended
    assert "frozen" not in world.cluster.notes()
    again = await person.sent(
        "/runs", {**body, "messages": [{"role": "user", "content": "record thawed 1 1"}]}, "thawed"
    )
    assert (await person.events(again["run_id"]))[-1]["status"] == "finished"
    assert world.cluster.notes().count("thawed") == 1
