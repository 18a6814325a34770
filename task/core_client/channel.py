"""Open DIAL's dialog for sign-ins in the middle of an answer, through the channel of the client that asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from cachetools import TTLCache
from pydantic import BaseModel, TypeAdapter

from task.core_client.models import TOOLSET, Caller, Result, SignIn
from task.llm.dial import core_headers

logger = logging.getLogger(__name__)

CHANNEL = "X-DIAL-CLIENT-CHANNEL-ID"
SECONDS = 120.0
PAUSE_SECONDS, MOST_REFUSED = 600.0, 1_000
_MAX_LINE = 2**17  # of the results; aiohttp refuses a longer line
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5)  # heartbeats come as seldom as Core likes


class _Entry(BaseModel):
    id: str
    result: Any = None


_ENTRIES = TypeAdapter(list[_Entry])


class Dialogs:
    """DIAL's dialogs for sign-ins; one that ended without success is not opened again for ten minutes."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str) -> None:
        self._session, self._url = session, f"{endpoint.rstrip('/')}/v1/ops/client-channel/interact"
        self._refused: TTLCache[tuple[str, SignIn], Result] = TTLCache(MOST_REFUSED, PAUSE_SECONDS)

    async def sign_in(self, caller: Caller, items: Sequence[SignIn]) -> dict[SignIn, Result]:
        """Let the user sign in to all `items` in one dialog, within 120 seconds; a failure is a result.

        Source: DIAL Core, `POST /v1/ops/client-channel/interact`.
        """
        channel = next((value for name, value in caller.headers.items() if name.lower() == CHANNEL.lower()), "")
        if not channel:
            return dict.fromkeys(items, "no channel")
        results: dict[SignIn, Result] = dict.fromkeys(items, "refused")
        user = await caller.principal()
        if wanted := [item for item in items if (user, item) not in self._refused]:
            signed_in = await self._signed_in(core_headers(caller.api_key) | {CHANNEL: channel}, wanted)
            results.update(dict.fromkeys(signed_in, "success"))
            self._refused.update({(user, item): "refused" for item in wanted if item not in signed_in})
        return results

    async def _signed_in(self, headers: dict[str, str], items: Sequence[SignIn]) -> list[SignIn]:
        batch: list[dict[str, Any]] = []
        for number, item in enumerate(items):
            parameters = {"toolsetId" if item.method == TOOLSET else "url": item.target}
            batch.append({"jsonrpc": "2.0", "id": str(number), "method": item.method, "params": parameters})
        options: Any = {"allow_redirects": False, "timeout": _TIMEOUT, "read_bufsize": _MAX_LINE}
        headers = {**headers, "Accept": "text/event-stream"}
        try:
            async with (
                asyncio.timeout(SECONDS),
                self._session.post(self._url, json=batch, headers=headers, **options) as response,
            ):
                response.raise_for_status()
                async for line in response.content:
                    if line.startswith(b"data:"):  # all others are heartbeats
                        entries = _ENTRIES.validate_json(line.removeprefix(b"data:"))
                        succeeded = {entry.id for entry in entries if entry.result == "success"}
                        return [item for number, item in enumerate(items) if str(number) in succeeded]
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, ValueError) as error:
            logger.warning("a sign-in through the client's channel failed (%s)", type(error).__name__)
        return []
