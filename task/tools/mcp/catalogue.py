"""The list of one server's tools: read when first needed, kept, and refreshed behind the requests' backs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from task.errors import new_reference
from task.tools.mcp.failures import Fault, MCPFailure
from task.tools.mcp.mcp_tool_model import MCPToolModel

logger = logging.getLogger(__name__)

Fetch = Callable[[], Awaitable[list[MCPToolModel]]]

PATIENCE = 5.0  # seconds a request waits for a list it needs
FRESH_SECONDS = 60.0
BACK_OFF = 30.0  # a server that hangs is asked behind the scenes meanwhile, and no request waits for it


class Catalogue:
    """The last good list, and what is wrong with the server now, if anything is."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        fresh_seconds: float = FRESH_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        self.tools: list[MCPToolModel] | None = None
        self.failure: MCPFailure | None = None
        self._clock = clock
        self._fresh_seconds = fresh_seconds
        self._patience = patience
        self._read_at = 0.0
        self._hung_at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def ready(self, fetch: Fetch, *, doubted: bool) -> None:
        """Have a list, or know why there is none; `doubted` says that a call has failed since the list was read."""
        trusted = self.tools is not None and self.failure is None and not doubted
        if trusted and self._clock() - self._read_at < self._fresh_seconds:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(fetch))
        if trusted:
            return
        patience = 0.0 if self._backing_off() else self._patience
        done, _ = await asyncio.wait({self._reading}, timeout=patience)
        if not done and self.failure is None:
            self._hung_at = self._clock()
            self.failure = MCPFailure(Fault.TIMEOUT, "The server did not list its tools in time.")

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def _backing_off(self) -> bool:
        return self._hung_at is not None and self._clock() - self._hung_at < BACK_OFF

    async def _read(self, fetch: Fetch) -> None:
        try:
            tools = await fetch()
        except MCPFailure as failure:
            self.failure = failure
            self._hung_at = self._clock() if failure.fault is Fault.TIMEOUT else None
        except Exception:
            reference = new_reference()
            logger.exception("the tools of a server could not be listed (reference %s)", reference)
            self.failure = MCPFailure(Fault.BROKEN, f"Its tools could not be listed (reference {reference}).")
        else:
            self.tools, self.failure, self._hung_at = tools, None, None
            self._read_at = self._clock()
