"""Access to the store for a process that serves even while the database is unavailable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from task.errors import AgentError, StoreUnavailable, StoreVersionError
from task.llm.base import Usage
from task.store.trace_records import Price, cost_of, usage_by_model

if TYPE_CHECKING:
    from task.shared.redis_store import RedisStore
    from task.store.store import Store

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
ENDING_SECONDS = 5.0
PATIENT_SECONDS, PAUSE_SECONDS = 30.0, 0.5  # for which an answer under way waits for the database
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Which store a process uses, and how.

    Kept is what was changed in the last `days`, and of that the newest `sessions` and `traces`; None keeps all.
    `prices` are those of a million tokens by model: of the prompt and of the answer. `data_dir` has the snapshots of
    coding tasks, which go with their runs. `chores` are off for commands that look once. `shared`: other processes
    answer for the same callers, so that rate limits are counted in the database, or in `redis` while that can be used.
    `migrate`: an older schema is brought up to date. `fingerprint` is that of the secret with which this process seals
    hidden state. `clock` is this machine's. A busy database is waited for `patience` seconds.
    """

    url: str
    days: float | None = 30
    sessions: int | None = 10_000
    traces: int | None = 100_000
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    data_dir: Path | None = None
    chores: bool = True
    shared: bool = False
    migrate: bool = True
    fingerprint: Callable[[], str] | None = None
    clock: Callable[[], float] = time.time
    redis: RedisStore | None = None
    patience: float = 5.0


@dataclass(slots=True)
class StoreAccess:
    """Opens the store on first use, and retries after it could not be opened; see `task.store.store.open_store`.

    `refused` says why this version cannot use the store. The database's libraries are loaded here, after the process
    has started.
    """

    options: StoreOptions
    refused: str | None = None
    _store: Store | None = None
    _opening: asyncio.Task[Store] | None = None
    _trying: asyncio.Lock = field(default_factory=asyncio.Lock)
    _not_before: float = 0.0
    _closed: bool = False

    def now(self) -> float:
        """The time by which all processes of the store agree; this machine's own while the store is not open."""
        return self._store.processes.clock() if self._store is not None else self.options.clock()

    def cost(self, model: str, usage: Usage, of_tools: Mapping[str, Usage]) -> float | None:
        """What a run's tokens cost, those of models behind tools included; None where its model has no price."""
        own = usage - sum(of_tools.values(), Usage())
        return cost_of(model, usage_by_model(model, own, of_tools), self.options.prices)

    async def get(self) -> Store:
        """The store.

        Raises:
            StoreUnavailable: its database does not answer, or the store was closed.
            SettingsError: its address names none.
        """
        if self._store is not None:
            return self._store
        if self._closed:  # a late request must not open what would never be closed
            raise StoreUnavailable("The agent is shutting down. Try again in a moment.")
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
        # Shielded: concurrent callers share one attempt, and the one that started it may be cancelled.
        self._store = store = await asyncio.shield(self._opening)
        return store

    async def get_if_available(self) -> Store | None:
        """The store, or None while it cannot be opened: for callers that can do without it and cannot wait."""
        failed_before = self._not_before > 0
        if self._store is not None or (failed_before and self._trying.locked()):
            return self._store
        async with self._trying:
            if self._store is not None or time.monotonic() < self._not_before:
                return self._store
            try:
                return await self.get()
            except Exception as error:  # a fault of ours must not prevent an answer
                self._not_before = time.monotonic() + RETRY_SECONDS
                ours = not isinstance(error, AgentError)
                logger.error("sessions and traces are not kept: %s", error, exc_info=ours)  # noqa: TRY400
            return None

    async def close(self) -> None:
        """Close the store permanently; an opening under way gets some seconds."""
        self._closed = True
        if self._opening is not None:
            await asyncio.wait({self._opening}, timeout=ENDING_SECONDS)
            self._opening.cancel()
            await asyncio.wait({self._opening})
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._opening.result().close()
            self._opening = self._store = None

    async def _open(self) -> Store:
        await asyncio.to_thread(import_module, "task.store.store")
        from task.store.store import open_store

        try:
            return await open_store(self.options)
        except StoreVersionError as error:
            self.refused = str(error)
            raise


async def patiently(visit: Callable[[], Awaitable[T]], seconds: float = PATIENT_SECONDS) -> T:
    """What the visit returns, which is paid again for so long while the database cannot be used.

    For an answer under way, which must not fail because its database is restarted. A write may have been stored though
    the visit failed, so that it has to find what it has written.

    Raises:
        StoreUnavailable: the database cannot be used for longer.
    """
    now = asyncio.get_running_loop().time
    until = now() + seconds
    while True:
        try:
            return await visit()
        except StoreUnavailable:
            if now() >= until:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
