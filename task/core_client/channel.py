"""Open DIAL's dialog for sign-ins in the middle of an answer, through the channel of the client that asked."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from task.core_client.models import CHANNEL, Caller, Result, SignIn, channel_of
from task.llm.dial import core_headers

logger = logging.getLogger(__name__)

SECONDS = 120.0
_MAX_LINE = 2**17  # of the results; aiohttp refuses a longer line
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5)  # heartbeats come as seldom as Core likes


async def sign_in(
    session: aiohttp.ClientSession, endpoint: str, caller: Caller, items: Sequence[SignIn]
) -> dict[SignIn, Result]:
    """Let the user sign in to all `items` in one dialog, within 120 seconds; a failure is a result.

    Source: DIAL Core, `POST /v1/ops/client-channel/interact`.
    """
    if not (channel := channel_of(caller)) or not items:
        return dict.fromkeys(items, "no channel")
    batch = [item.as_request(str(number)) for number, item in enumerate(items)]
    url, headers = f"{endpoint.rstrip('/')}/v1/ops/client-channel/interact", core_headers(caller.api_key)
    headers |= {CHANNEL: channel, "Accept": "text/event-stream"}
    results: Mapping[str, Any] = {}
    try:
        async with (
            asyncio.timeout(SECONDS),
            session.post(
                url, json=batch, headers=headers, allow_redirects=False, timeout=_TIMEOUT, read_bufsize=_MAX_LINE
            ) as response,
        ):
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data:"):  # all others are heartbeats
                    results = _results(line.removeprefix(b"data:"))
                    break
    except (aiohttp.ClientError, HttpProcessingError, ValueError, RecursionError) as error:
        logger.warning("a sign-in through the client's channel failed (%s)", type(error).__name__)
    except TimeoutError:
        return dict.fromkeys(items, "timeout")
    known: Mapping[Any, Result] = {"success": "success", "denied": "denied"}
    return {item: known.get(results.get(str(number)), "error") for number, item in enumerate(items)}


def _results(data: bytes) -> dict[str, str]:
    parsed = json.loads(data)
    entries = cast("list[Any]", parsed if isinstance(parsed, list) else [parsed])
    return {str(entry.get("id")): str(entry.get("result")) for entry in entries if isinstance(entry, dict)}
