"""Rate limits: token buckets, shared by all processes of a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import Connection, text

from task.store.database import Database

MOST_BUCKETS = 10_000

# The level is what is left; it fills by :rate a second up to :most. No row is returned when less than one is left.
_MOST, _NOW = "CAST(:most AS float8)", "CAST(:now AS float8)"
_FILLED = f"c.level + GREATEST({_NOW} - c.filled_at, 0) * CAST(:rate AS float8)"
# Every request takes one: the statement is its own transaction and does not wait for the disk.
_TAKE = text(
    f"INSERT INTO counters AS c (name, level, filled_at) SELECT :name, {_MOST} - 1, {_NOW} "  # noqa: S608
    "FROM set_config('synchronous_commit', 'off', true) "
    f"ON CONFLICT (name) DO UPDATE SET filled_at = GREATEST(c.filled_at, {_NOW}), "
    f"level = LEAST({_MOST}, {_FILLED}) - 1 WHERE LEAST({_MOST}, {_FILLED}) >= 1 RETURNING level"
)
_LEFT = text(f"SELECT {_FILLED} FROM counters AS c WHERE name = :name")  # noqa: S608


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Buckets by name. In SQLite, which one process uses, they are in memory."""

    database: Database
    clock: Callable[[], float]
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    async def take(self, name: str, per_minute: int) -> float | None:
        """Take one request of `per_minute` out of the bucket; when it is empty, the seconds until it is not."""
        rate, now = per_minute / 60, self.clock()
        if self.database.is_sqlite:
            return self._take_here(name, float(per_minute), rate, now)
        values = {"name": name, "most": float(per_minute), "rate": rate, "now": now}

        def work(connection: Connection) -> float | None:
            if connection.execute(_TAKE, values).first() is not None:
                return None
            level = connection.scalar(_LEFT, {"name": name, "rate": rate, "now": now})
            return _wait(level or 0.0, rate)

        return await self.database.read(work)

    def _take_here(self, name: str, most: float, rate: float, now: float) -> float | None:
        level, filled_at = self._buckets.get(name, (most, now))
        level = min(most, level + max(now - filled_at, 0) * rate)
        if level < 1:
            return _wait(level, rate)
        if len(self._buckets) >= MOST_BUCKETS:
            self._buckets.clear()
        self._buckets[name] = (level - 1, now)
        return None


def _wait(level: float, rate: float) -> float:
    return max((1 - level) / rate, 0.001)
