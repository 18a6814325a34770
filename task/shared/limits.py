"""Rate limits: a bucket for each name, in Redis while that works, else in the store or the process.

A bucket is kept as the time at which it is full again; what is full holds the requests of a minute.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from task.shared.redis_store import RedisStore

MOST_BUCKETS = 10_000
MINUTE = 60.0
LEAST_WAIT = 0.001  # seconds: never 0, which would read as "now"


# Takes one request of `per_minute` out of the bucket of a name; when it is empty, the seconds until it is not.
Take = Callable[[str, int], Awaitable[float | None]]


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of all replicas in Redis; while it cannot be used, those of `own`, whose buckets start full."""

    own: Take
    redis: RedisStore | None = None

    async def take(self, name: str, per_minute: int) -> float | None:
        """As `Take`."""
        if self.redis is not None and (wait := await self.redis.take(name, per_minute)) is not None:
            return wait or None
        return await self.own(name, per_minute)


def buckets_in_memory(clock: Callable[[], float]) -> Take:
    """The buckets of a process that shares its callers with no other."""
    all_full_at = dict[str, float]()

    async def take(name: str, per_minute: int) -> float | None:
        now = clock()
        full_at = max(all_full_at.get(name, now), now) + MINUTE / per_minute
        if (wait := full_at - now - MINUTE) > LEAST_WAIT:
            return wait
        if len(all_full_at) >= MOST_BUCKETS:
            all_full_at.clear()
        all_full_at[name] = full_at
        return None

    return take
