"""Rate limits: a bucket for each name, in Redis while that works, else in the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from task.shared.redis_store import RedisStore

MOST_BUCKETS = 10_000
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


@dataclass(frozen=True, slots=True)
class MemoryBuckets:
    """The buckets of a process that shares its callers with no other."""

    clock: Callable[[], float]
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    async def take(self, name: str, per_minute: int) -> float | None:
        """As `Take`."""
        now = self.clock()
        level, wait = taken(self._buckets.get(name), per_minute, now)
        if wait is None:
            if len(self._buckets) >= MOST_BUCKETS:
                self._buckets.clear()
            self._buckets[name] = (level, now)
        return wait


def taken(bucket: tuple[float, float] | None, per_minute: int, now: float) -> tuple[float, float | None]:
    """The level of a bucket after one request, and the seconds to wait where there was none left.

    A `bucket` is its level and the time of that level; None is one that nothing was taken from.
    """
    level, filled_at = bucket or (float(per_minute), now)
    level = min(per_minute, level + max(now - filled_at, 0) * per_minute / 60)
    return (level - 1, None) if level >= 1 else (level, waiting_time(level, per_minute))


def waiting_time(level: float, per_minute: int) -> float:
    """Seconds until a bucket of this level has one request again."""
    return max((1 - level) * 60 / per_minute, LEAST_WAIT)
