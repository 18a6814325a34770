"""The store of a process that serves whether the database is there or not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING

from task.errors import AgentError, SettingsError, StoreUnavailable

if TYPE_CHECKING:
    from task.store.spans import SpanSender
    from task.store.store import Store
    from task.store.trace_records import Trace

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
ENDING_SECONDS = 5.0


@dataclass(slots=True)
class StoreAccess:
    """Opens the store on first use, and again after it could not be opened; see `task.store.store.open_store`.

    `prices` are those of a million tokens by model: of the prompt and of the answer. `spans_url` is the OpenTelemetry
    collector that gets finished traces. The database's libraries are
    loaded here, off the path of the process's start.
    """

    url: str
    days: float = 30
    sessions: int = 10_000
    traces: int = 100_000
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    spans_url: str | None = None
    chores: bool = True
    _spans: SpanSender | None = None
    _store: Store | None = None
    _opening: asyncio.Task[Store] | None = None
    _trying: asyncio.Lock = field(default_factory=asyncio.Lock)
    _not_before: float = 0.0
    _closed: bool = False

    async def get(self) -> Store:
        """The store.

        Raises:
            StoreUnavailable: its database does not answer, or the store was closed.
            SettingsError: its address names none.
        """
        if self._store is not None:
            return self._store
        if self._closed:  # a late request must not open what nobody would close any more
            raise StoreUnavailable("The agent is ending. Try again in a moment.")
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._opened())
        # Shielded: all who come meanwhile wait for one attempt, and whoever began it may leave.
        store = await asyncio.shield(self._opening)
        self._store = store
        return store

    async def get_if_available(self) -> Store | None:
        """The store, or None while it cannot be opened: for those who can do without and cannot wait."""
        failed_before = self._not_before > 0
        if self._store is not None or (failed_before and self._trying.locked()):
            return self._store
        async with self._trying:
            if self._store is not None or monotonic() < self._not_before:
                return self._store
            try:
                return await self.get()
            except AgentError as error:
                self._not_before = monotonic() + RETRY_SECONDS
                logger.error("sessions and traces are not kept: %s", error)  # noqa: TRY400
            except Exception:
                self._not_before = monotonic() + RETRY_SECONDS
                logger.exception("sessions and traces are not kept")  # a fault of ours, and no reason not to answer
            return None

    async def close(self) -> None:
        """Close the store for good; an opening under way is waited for some seconds."""
        self._closed = True
        if self._opening is not None:
            await asyncio.wait({self._opening}, timeout=ENDING_SECONDS)
            self._opening.cancel()
            await asyncio.wait({self._opening})
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._opening.result().close()
            self._opening = self._store = None
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
            self._spans = None

    async def _opened(self) -> Store:
        await asyncio.to_thread(import_module, "task.store.store")
        from task.store.retention import Retention
        from task.store.store import open_store
        from task.store.trace_records import Price

        prices = {model: Price(*pair) for model, pair in self.prices.items()}
        retention = Retention(self.days, self.sessions, self.traces)
        finished = await asyncio.to_thread(self._sender)
        return await open_store(self.url, prices=prices, retention=retention, chores=self.chores, finished=finished)

    def _sender(self) -> Callable[[Trace], None]:
        if self.spans_url is None:
            return lambda _: None
        if self._spans is None:
            try:
                from task.store.spans import SpanSender, collector_at
            except ImportError as error:
                raise SettingsError(
                    "AGENT_STORE__SPANS_URL needs packages that are not installed: pip install "
                    "'dial-general-purpose-agent[otel]'."
                ) from error
            self._spans = SpanSender(collector_at(self.spans_url))
        return self._spans.send
