"""Keep what was read and indexed in Redis, for replicas and restarts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

MAX_BYTES = 128 * 2**20
PREFIX = "dial-agent:rag:"
REST_SECONDS = 5.0  # how long a Redis that failed is left alone
ANSWER_SECONDS = 10.0
_CONNECT_SECONDS = 2.0
_Answer = TypeVar("_Answer")


class RedisStore:
    """Bytes by key in the Redis at `url`; while it is away, the store is empty and keeps nothing."""

    def __init__(
        self,
        url: str,
        *,
        rest_seconds: float = REST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._url = url
        self._patience = answer_seconds
        self._rest = rest_seconds
        self._clock = clock
        self._redis: Redis | None = None
        self._resting_until = float("-inf")

    async def get(self, key: str) -> bytes | None:
        found = await self._run(lambda redis: redis.get(PREFIX + key))
        return found if isinstance(found, bytes) else None

    async def put(self, key: str, value: bytes, seconds: int) -> None:
        if len(value) <= MAX_BYTES:
            await self._run(lambda redis: redis.set(PREFIX + key, value, ex=seconds))

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """One value for each key."""
        found = await self._run(lambda redis: redis.mget([PREFIX + key for key in keys]))
        return [value if isinstance(value, bytes) else None for value in found or [None] * len(keys)]

    async def put_many(self, values: Mapping[str, bytes], seconds: int) -> None:
        def stored(redis: Redis) -> Awaitable[object]:
            pipeline = redis.pipeline(transaction=False)
            for key, value in values.items():
                pipeline.set(PREFIX + key, value, ex=seconds)
            return pipeline.execute()

        await self._run(stored)

    async def drop(self, key: str) -> None:
        await self._run(lambda redis: redis.delete(PREFIX + key))

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    async def _run(self, command: Callable[[Redis], Awaitable[_Answer]]) -> _Answer | None:
        from redis.exceptions import RedisError

        if self._clock() < self._resting_until:
            return None
        try:
            return await command(self._connected())
        except (RedisError, OSError, TimeoutError) as error:
            self._resting_until = self._clock() + self._rest
            logger.warning("Redis does not answer (%s); documents are not shared for now", type(error).__name__)
            return None

    def _connected(self) -> Redis:
        if self._redis is None:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as Broken

            # A kept connection may have ended long ago, so a second one is tried; a time-out is not retried.
            retry = Retry(NoBackoff(), 1, supported_errors=(Broken,))
            self._redis = Redis.from_url(
                self._url, socket_timeout=self._patience, socket_connect_timeout=_CONNECT_SECONDS, retry=retry
            )
        return self._redis
