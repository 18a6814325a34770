"""The rules by which a person is asked, and the claims by which an approval counts once across replicas."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time
from typing import Protocol

import aiohttp
import orjson

from task.llm.dial import core_headers
from task.permissions.policy import DEFAULT_POLICY, Policy

logger = logging.getLogger(__name__)

FOLDER = "approvals"
_SECONDS = 15.0
_REMEMBERED = 10_000
_EXISTS = 412


class Claims(Protocol):
    """The first to present the id of a suspended turn may run what was approved in it."""

    async def take(self, turn: str, expires: float, api_key: str) -> bool:
        """True for the first request before the approval expires, False for every later one."""
        ...


@dataclass(slots=True)
class ProcessClaims:
    """Remembers in this process what was approved, until it expires."""

    clock: Callable[[], float] = time
    _taken: OrderedDict[str, float] = field(init=False, default_factory=OrderedDict[str, float])

    async def take(self, turn: str, expires: float, api_key: str) -> bool:
        while self._taken and (len(self._taken) >= _REMEMBERED or next(iter(self._taken.values())) < self.clock()):
            self._taken.popitem(last=False)
        if turn in self._taken:
            return False
        self._taken[turn] = expires
        return True


@dataclass(slots=True)
class CoreClaims:
    """Leaves a note in the person's own files at Core, where every replica finds it.

    Without a Core that stores the note only this process knows what was approved.
    """

    session: aiohttp.ClientSession
    endpoint: str
    near: ProcessClaims = field(default_factory=ProcessClaims)

    async def take(self, turn: str, expires: float, api_key: str) -> bool:
        if not await self.near.take(turn, expires, api_key):
            return False
        try:
            async with asyncio.timeout(_SECONDS):
                return await self._noted(turn, core_headers(api_key))
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, AttributeError) as error:
            logger.warning("an approval is known to this process only (%s)", type(error).__name__)
            return True

    async def _noted(self, turn: str, headers: dict[str, str]) -> bool:
        base = self.endpoint.rstrip("/")
        async with self.session.get(f"{base}/v1/bucket", headers=headers, allow_redirects=False) as response:
            response.raise_for_status()
            home = orjson.loads(await response.read())
        form = aiohttp.FormData()
        form.add_field("file", turn.encode(), filename=f"{turn}.txt", content_type="text/plain")
        url = f"{base}/v1/files/{home.get('appdata') or home['bucket']}/{FOLDER}/{turn}.txt"
        first = {**headers, "If-None-Match": "*"}
        async with self.session.put(url, data=form, headers=first, allow_redirects=False) as response:
            if response.status == _EXISTS:
                return False
            response.raise_for_status()
            return True


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """The policy, how long questions stay open and grants last, and the claims."""

    policy: Policy = DEFAULT_POLICY
    claims: Claims = field(default_factory=ProcessClaims)
    open_seconds: float = 3600
    grant_seconds: float = 86_400
    clock: Callable[[], float] = time
