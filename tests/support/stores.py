"""Stores for tests: a new one, one at a given time, and the same one opened again."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.store.access import StoreOptions
from task.store.processes import BEAT_SECONDS
from task.store.store import Store, open_store

OWNER = "ann"


@dataclass
class StoreClock:
    """A clock of the store that moves when a test sets it."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def seen_for(store: Store, clock: StoreClock, seconds: float) -> None:
    """Let so many seconds pass in which this store is in use all the time, and others that share it are not."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now = min(clock.now + BEAT_SECONDS, until)
        await store.processes.beat()


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


@asynccontextmanager
async def opened(url: str, clock: Callable[[], float] | None = None, **options: Any) -> AsyncGenerator[Store]:
    store = await open_store(StoreOptions(url, **({"clock": clock} if clock else {}), **options))
    try:
        yield store
    finally:
        await store.close()
