"""What the replicas of one agent share in Redis: documents, listings, limits, and which are connected."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from task.errors import SettingsError

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

MAX_BYTES = 128 * 2**20
SHARED = "dial-agent:"
PREFIX = f"{SHARED}rag:"
REPLICAS = "replicas"
REST_SECONDS = 5.0  # how long a Redis that failed is left alone
ANSWER_SECONDS = 10.0  # of a whole document
SHORT_SECONDS = 1.0  # of everything that a request waits for before it is answered
LEASE_SECONDS = 30  # a place that a replica has not renewed for so long is free again
BEAT_SECONDS = 5.0
_CONNECT_SECONDS = 2.0
_UNLIMITED = 2**31  # holders of a place
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = ("db", "ssl_cert_reqs", *_FILES)
_VERIFICATIONS = ("none", "optional", "required")

Kind = Literal["read", "write", "script"]
ALL = "all"  # the scope of a fault that is not one of the commands of a kind
_Answer = TypeVar("_Answer")

# The generic cell rate algorithm: the key holds the time at which the bucket is full again. All times are the server's.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + 60 / ARGV[1]
local wait = full_at - now - 60
if wait > 0.001 then return tostring(wait) end
redis.call('SET', KEYS[1], string.format('%.6f', full_at), 'PX', math.ceil((full_at - now) * 1000))
return '0'
"""
# A place is a sorted set of its holders by the time of their last renewal.
_HOLD = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3] * 2)
return redis.call('ZCARD', KEYS[1])
"""


@dataclass(eq=False, repr=False, slots=True)  # the URL may hold a password
class RedisStore:
    """One Redis for all replicas. While it is away nothing fails: the methods return None, and callers use their own.

    A Redis that failed is left alone for `rest_seconds`, after which one command tries it again. It may also refuse
    some commands only: a read-only replica and a full one still answer what is read.
    """

    url: str
    rest_seconds: float = REST_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    short_seconds: float = SHORT_SECONDS
    beat_seconds: float = BEAT_SECONDS
    lease_seconds: int = LEASE_SECONDS
    clock: Callable[[], float] = monotonic
    own_id: str = field(default_factory=lambda: uuid4().hex)
    _redis: Redis | None = None
    _faults: dict[str, str] = field(default_factory=dict[str, str])
    _resting_until: dict[str, float] = field(default_factory=dict[str, float])
    _held: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _beating: asyncio.Task[None] | None = None

    @property
    def fault(self) -> str:
        """What is wrong with this Redis, as a sentence for an operator; empty: nothing that is known."""
        return next(iter(self._faults.values()), "")

    def check(self) -> None:
        """Find an address that cannot be meant, before anything connects.

        Raises:
            SettingsError: its port, database or an option cannot be used, or one of its files cannot be read.
        """
        if wrong := _wrong(self.url):
            raise SettingsError(f"AGENT_REDIS_URL: {wrong}. Correct it.")

    async def get(self, key: str) -> bytes | None:
        """What is stored for documents under the key."""
        found = await self._run("read", lambda redis: redis.get(PREFIX + key))
        return found if isinstance(found, bytes) else None

    async def put(self, key: str, value: bytes, seconds: int) -> None:
        if len(value) <= MAX_BYTES:
            await self._run("write", lambda redis: redis.set(PREFIX + key, value, ex=seconds))

    async def drop(self, key: str) -> None:
        await self._run("write", lambda redis: redis.delete(PREFIX + key))

    async def listing(self, key: str, seconds: float) -> tuple[bytes, float] | None:
        """A listing that some replica has put there for so many seconds, and its age."""

        async def command(redis: Redis) -> list[Any]:
            pipeline = redis.pipeline(transaction=False)
            pipeline.get(f"{SHARED}mcp:{key}")
            pipeline.pttl(f"{SHARED}mcp:{key}")
            return await pipeline.execute()

        found = await self._run("read", command, self.short_seconds)
        if found is None or found[0] is None:
            return None
        return found[0], max(seconds - found[1] / 1000, 0.0)

    async def put_listing(self, key: str, value: bytes, seconds: float) -> None:
        kept = int(seconds * 1000)
        await self._run("write", lambda redis: redis.set(f"{SHARED}mcp:{key}", value, px=kept), self.short_seconds)

    async def take(self, name: str, per_minute: int) -> float | None:
        """Take one of `per_minute` requests: 0, or the seconds until there is one; None: Redis cannot be used."""
        key = f"{SHARED}limit:{name}"
        wait = await self._run("script", lambda redis: redis.eval(_TAKE, 1, key, per_minute), self.short_seconds)
        return float(wait) if wait is not None else None

    async def hold(self, place: str, holder: str, most: int | None = None) -> int | None:
        """Hold a place, among at most so many holders, until it is released or this process ends.

        How many holders it has now; 0: it has as many as it may. None: Redis cannot be used; as soon as it can, the
        place is held all the same.
        """
        count = await self._run("script", lambda redis: self._holding(redis, place, holder, most), self.short_seconds)
        # Also where Redis is away: the renewal holds the place as soon as it is back.
        if count != 0:
            self._held.add((place, holder))
            if self._beating is None:
                self._beating = asyncio.create_task(self._renew_repeatedly())
        return count

    async def release(self, place: str, holder: str) -> None:
        """Hold the place no longer."""
        self._held.discard((place, holder))
        await self._run("write", lambda redis: redis.zrem(_place(place), holder), self.short_seconds)

    async def replicas(self) -> int | None:
        """How many agents are connected, after a look whether this Redis works; see `fault`."""
        await self._run("write", lambda redis: redis.set(f"{SHARED}look", b"", px=1), self.short_seconds)
        return await self._run("read", lambda redis: redis.zcard(_place(REPLICAS)), self.short_seconds)

    async def close(self) -> None:
        """Release everything that is held, and disconnect."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        for place, holder in list(self._held):
            await self.release(place, holder)
        if self._redis is not None:
            await self._redis.aclose()

    async def _renew_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self.beat_seconds)
            await self.renew()

    async def renew(self) -> None:
        """Renew every place that is held; what a Redis has lost in a restart is there again afterwards."""
        held = list(self._held)

        async def command(redis: Redis) -> None:
            pipeline = redis.pipeline(transaction=False)
            for place, holder in held:
                self._holding(cast("Redis", pipeline), place, holder, None)
            await pipeline.execute()

        if held:
            await self._run("script", command, self.answer_seconds)
        for place, holder in held:
            if (place, holder) not in self._held:  # released meanwhile
                await self.release(place, holder)

    def _holding(self, redis: Redis, place: str, holder: str, most: int | None) -> Awaitable[int]:
        return cast(
            "Awaitable[int]", redis.eval(_HOLD, 1, _place(place), holder, most or _UNLIMITED, self.lease_seconds)
        )

    async def _run(
        self, kind: Kind, command: Callable[[Redis], Awaitable[_Answer]], seconds: float | None = None
    ) -> _Answer | None:
        for scope in (ALL, kind):
            if self.clock() < self._resting_until.get(scope, float("-inf")):
                return None
            if scope in self._faults:  # this command tries it, and no other meanwhile
                self._resting_until[scope] = self.clock() + self.rest_seconds
        if "redis.asyncio" not in sys.modules:  # a quarter of a second, in which other requests must not wait
            await asyncio.to_thread(import_module, "redis.asyncio")
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(seconds):
                answer = await command(self._client())
        except (RedisError, OSError, TimeoutError) as error:
            self._failed(kind, error)
            return None
        ended = [scope for scope in (ALL, kind) if self._faults.pop(scope, None)]
        for scope in ended:
            del self._resting_until[scope]
        if ended and not self._faults:
            logger.warning("Redis can be used again.")
        return answer

    def _failed(self, kind: Kind, error: Exception) -> None:
        from redis.exceptions import ConnectionError as Broken
        from redis.exceptions import ResponseError

        refused = isinstance(error, ResponseError) and not isinstance(error, Broken)
        scope, reason, known = kind if refused else ALL, _reason(error), set(self._faults.values())
        self._faults[scope] = reason
        self._resting_until[scope] = self.clock() + self.rest_seconds
        if reason not in known:
            logger.warning("%s. Until it can be used, limits, listings and documents are each agent's own.", reason)

    def _client(self) -> Redis:
        if self._redis is None:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as Broken

            # A kept connection may have ended long ago, so a second one is tried; a time-out is not retried.
            retry = Retry(NoBackoff(), 1, supported_errors=(Broken,))
            self._redis = Redis.from_url(
                self.url, socket_timeout=self.answer_seconds, socket_connect_timeout=_CONNECT_SECONDS, retry=retry
            )
        return self._redis


def _wrong(url: str) -> str:
    parts = urlsplit(url)
    try:
        _ = parts.port
    except ValueError:
        return "its port is not a number"
    options = dict(parse_qsl(parts.query))
    in_path = "" if parts.scheme == "unix" else parts.path.strip("/")
    if not options.get("db", in_path or "0").isdecimal():
        return "its database is not a number"
    for name, value in options.items():
        if name not in _OPTIONS:
            return f"there is no option {name!r}; there are {', '.join(_OPTIONS)}"
        if name.startswith("ssl_") and parts.scheme != "rediss":
            return f"{name} needs rediss://"
        if name == "ssl_cert_reqs" and value not in _VERIFICATIONS:
            return f"{name} is none, optional or required"
        try:
            if name == "ssl_ca_certs":
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(value)
            elif name in _FILES:
                Path(value).read_bytes()
        except ssl.SSLError:
            return f"{name} {value}: it contains no certificate"
        except OSError as error:
            return f"{name} {value}: {error.strerror or 'it cannot be read'}"
    return ""


def _place(place: str) -> str:
    return f"{SHARED}held:{place}"


def _reason(error: BaseException) -> str:
    from redis import exceptions as redis

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return "The certificate of Redis is not trusted; add ?ssl_ca_certs=/path/of/its/ca.crt to AGENT_REDIS_URL"
    if isinstance(error, redis.AuthenticationError | redis.AuthorizationError):
        return "Redis refuses the user name or the password of AGENT_REDIS_URL"
    # What a script may not do is reported as a general error, in other words since version 7.2.
    in_script = any(words in str(error) for words in ("can't run this command", "ACL failure in script"))
    if isinstance(error, redis.NoPermissionError) or in_script:
        return "Redis does not let the user of AGENT_REDIS_URL run a command that is needed; extend its ACL"
    if isinstance(error, redis.ReadOnlyError):
        return "This Redis is a read-only replica; AGENT_REDIS_URL must lead to the primary"
    if isinstance(error, redis.OutOfMemoryError):
        return "Redis is full; raise its maxmemory, or set its maxmemory-policy to allkeys-lru"
    if isinstance(error, redis.TimeoutError | TimeoutError):
        return "Redis does not answer in time"
    if isinstance(error, redis.ConnectionError | OSError):
        return "Redis cannot be reached"
    return f"Redis refuses a command ({type(error).__name__})"
