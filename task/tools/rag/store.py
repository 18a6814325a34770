"""Where indexes outlive a process: nowhere by default, in Redis for replicas and restarts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

MAX_BYTES = 128 * 2**20
PREFIX = "dial-agent:rag:"
REST_SECONDS = 5.0  # a Redis that failed is not asked again for so long
ANSWER_SECONDS = 10.0
_CONNECT_SECONDS = 2.0
_Answer = TypeVar("_Answer")


class IndexStore(Protocol):
    """Bytes by key for some seconds; a store that fails is one that holds nothing."""

    async def get(self, key: str) -> bytes | None: ...

    async def put(self, key: str, value: bytes, seconds: int) -> None: ...

    async def drop(self, key: str) -> None: ...

    async def close(self) -> None: ...


class NoStore:
    """Keeps nothing."""

    async def get(self, key: str) -> bytes | None:
        return None

    async def put(self, key: str, value: bytes, seconds: int) -> None:
        return None

    async def drop(self, key: str) -> None:
        return None

    async def close(self) -> None:
        return None


class RedisStore:
    """Keeps in the Redis at `url`; while that is away, documents are indexed as without it."""

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
        self._silent_until = float("-inf")

    async def get(self, key: str) -> bytes | None:
        found = await self._asked(lambda redis: redis.get(PREFIX + key))
        return found if isinstance(found, bytes) else None

    async def put(self, key: str, value: bytes, seconds: int) -> None:
        if len(value) <= MAX_BYTES:
            await self._asked(lambda redis: redis.set(PREFIX + key, value, ex=seconds))

    async def drop(self, key: str) -> None:
        await self._asked(lambda redis: redis.delete(PREFIX + key))

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    async def _asked(self, ask: Callable[[Redis], Awaitable[_Answer]]) -> _Answer | None:
        from redis.exceptions import RedisError

        if self._clock() < self._silent_until:
            return None
        try:
            answer = await ask(self._connected())
        except (RedisError, OSError, TimeoutError) as error:
            self._silent_until = self._clock() + self._rest
            logger.warning("Redis does not answer (%s); indexes are not shared for now", type(error).__name__)
            return None
        return answer

    def _connected(self) -> Redis:
        if self._redis is None:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as Broken

            # A kept connection may have ended long ago, so one more is tried; a server that is silent stays so.
            again = Retry(NoBackoff(), 1, supported_errors=(Broken,))
            self._redis = Redis.from_url(
                self._url, socket_timeout=self._patience, socket_connect_timeout=_CONNECT_SECONDS, retry=again
            )  # fmt: skip
        return self._redis
