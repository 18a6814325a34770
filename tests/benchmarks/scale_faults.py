"""What happens to the replicas of `make scale` and to what they share, at random times that follow from a seed."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from tests.support.cluster import Cluster, Replica
from tests.support.next_version import later_product
from tests.support.up import dial_agent

BETWEEN_FAULTS = (2.0, 8.0)
KINDS = ("kill", "freeze", "restart_database", "cut_off", "lose_redis", "roll_out", "migrate")


@dataclass
class Faults:
    """What happens to the cluster, at random times. `spell` is how long a replica is frozen or cut off, at most."""

    cluster: Cluster
    dice: random.Random
    spell: float
    done: Counter[str] = field(default_factory=Counter[str])
    _locks: dict[int, asyncio.Lock] = field(default_factory=dict[int, asyncio.Lock])
    _spells: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _migrated: bool = False

    async def work(self, until: float) -> None:
        """Faults until then; at the end everything runs again."""
        kinds: list[str] = []
        while perf_counter() < until:
            if not kinds:
                kinds = self.dice.sample(KINDS, len(KINDS))
            await getattr(self, f"_{kinds.pop()}")()
            await asyncio.sleep(min(self.dice.uniform(*BETWEEN_FAULTS), max(until - perf_counter(), 0)))
        await self._spells_over()

    async def once(self, kind: str) -> None:
        """One fault, to its end."""
        await getattr(self, f"_{kind}")()
        await self._spells_over()

    async def _spells_over(self) -> None:
        await asyncio.gather(*self._spells)

    async def _kill(self) -> None:
        async with self._lock(replica := self._chosen()):
            self.done["a replica killed"] += 1
            await replica.kill()
            await replica.start()

    async def _roll_out(self) -> None:
        self.done["a roll-out"] += 1
        for replica in self.cluster.replicas:
            async with self._lock(replica):
                await replica.stop()
                await replica.start()

    async def _restart_database(self) -> None:
        self.done["the database restarted"] += 1
        await self.cluster.postgres.stop()
        await asyncio.sleep(self.dice.uniform(0, 3))
        await self.cluster.postgres.start()

    async def _lose_redis(self) -> None:
        self.done["Redis gone and back"] += 1
        await self.cluster.redis.stop()
        await asyncio.sleep(self.dice.uniform(1, min(self.spell, 5)))
        await self.cluster.redis.start()

    async def _freeze(self) -> None:
        self._begin("a replica frozen", lambda replica: replica.freeze(), lambda replica: replica.wake())

    async def _cut_off(self) -> None:
        self._begin(
            "a replica cut off from the database",
            lambda replica: replica.store.flowing.clear(),
            lambda replica: replica.store.flowing.set(),
        )

    async def _migrate(self) -> None:
        if self._migrated:
            return
        self._migrated = True
        self.done["a migration"] += 1
        later = later_product(self.cluster.folder / "later")
        url = self.cluster.postgres.url
        migrated = await dial_agent(self.cluster.folder, "store", "migrate", AGENT_STORE__URL=url, PYTHONPATH=later)
        assert migrated.code == 0, migrated.err

    def _begin(self, name: str, begin: Callable[[Replica], None], end: Callable[[Replica], None]) -> None:
        replica = self._chosen()

        async def spell() -> None:
            async with self._lock(replica):
                self.done[name] += 1
                begin(replica)
                try:
                    await asyncio.sleep(self.spell)
                finally:
                    end(replica)
                await replica.ready()

        self._spells.add(task := asyncio.create_task(spell()))
        task.add_done_callback(self._spells.discard)

    def _chosen(self) -> Replica:
        free = [replica for replica in self.cluster.replicas if not self._lock(replica).locked()]
        return self.dice.choice(free or self.cluster.replicas)

    def _lock(self, replica: Replica) -> asyncio.Lock:
        return self._locks.setdefault(replica.port, asyncio.Lock())
