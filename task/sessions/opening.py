"""The store of a process that serves whether the database is there or not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from task.errors import StoreUnavailable

if TYPE_CHECKING:
    from task.sessions.service import Store

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StoreAccess:
    """Opens the store on first use, once, and again after it could not be opened; `options` go to `open_store`.

    The database's libraries are loaded here, off the path of the process's start.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _store: Store | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self) -> Store:
        """The store.

        Raises:
            StoreUnavailable: its database does not answer.
            SettingsError: its address names none.
        """
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    self._store = await self._opened()
        return self._store

    async def try_get(self) -> Store | None:
        """The store, or None when its database does not answer: for those who can do without."""
        try:
            return await self.get()
        except StoreUnavailable as error:
            logger.warning("working without the store: %s", error)
            return None

    async def close(self) -> None:
        async with self._opening:
            if self._store is not None:
                await self._store.close()
                self._store = None

    async def _opened(self) -> Store:
        service = await asyncio.to_thread(_load)
        return await service(self.url, **self.options)


def _load() -> Any:
    from task.sessions.service import open_store

    return open_store
