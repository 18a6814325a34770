"""Whether the product can answer: its model's server, its store, and the servers of its tools."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from urllib.parse import urlsplit

from task.errors import StoreUnavailable
from task.product.profile import Profile, Services, offered
from task.tools.base import BaseTool

FRESH_SECONDS = 5.0
PROBE_SECONDS = 10.0  # the first look may open the store
NO_MODEL = "the model's server cannot be reached"
NO_STORE = "the store cannot be used: sessions, runs and traces are not kept"


@dataclass(frozen=True, slots=True)
class Report:
    """`reasons` why the product cannot answer, and what is `degraded`; neither names an address."""

    reasons: tuple[str, ...]
    degraded: tuple[str, ...]
    tools: Sequence[BaseTool]


@dataclass(slots=True)
class Health:
    """Looks at most every five seconds at what is outside, however often it is asked."""

    services: Services
    profile: Profile
    clock: Callable[[], float] = monotonic
    _last: Report = Report((), (), ())
    _looked_at: float | None = None
    _disagreements: tuple[str, ...] = ()
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def report(self) -> Report:
        """Without its model or its store the product is not ready; a server of tools or a Redis that is down, a replica
        with another secret and a wrong clock degrade it."""
        async with self._looking:
            if self._looked_at is None or self.clock() - self._looked_at >= FRESH_SECONDS:
                model, store = await asyncio.gather(_in_time(self._connect()), _in_time(self._count()))
                reasons = (*(() if model else (NO_MODEL,)), *(() if store else (NO_STORE,)))
                tools, issues = await offered(self.services, self.profile)
                failing = (f"{issue.server}: {issue.summary}" for issue in issues)
                self._last = Report(reasons, (*failing, *self._disagreements), tools)
                self._looked_at = self.clock()
            redis = self.services.redis
            # Nothing is asked for it: this process renews its place there every few seconds.
            faults = (f"redis: {redis.fault}",) if redis is not None and redis.fault else ()
            return replace(self._last, degraded=(*self._last.degraded, *faults))

    async def _connect(self) -> bool:
        address = self.profile.backend.address
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.hostname is not None:  # else a socket's path, which only its own library connects to
            port = parts.port or (443 if parts.scheme == "https" else 80)
            _, writer = await asyncio.open_connection(parts.hostname, port)
            writer.close()
        return True

    async def _count(self) -> bool:
        store = await self.services.store.get_if_available()
        if store is None:
            return False
        await store.approvals.waiting()
        self._disagreements = await store.processes.disagreements()
        return True


async def _in_time(probe: Awaitable[bool]) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await probe
    except (OSError, StoreUnavailable, TimeoutError):
        return False
