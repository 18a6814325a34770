"""Doors for tests, apart from Core's API and closed unless enabled: keys, recorded calls, faults and the clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from task.local_core.clock import Clock
from task.local_core.keys import Keys
from task.local_core.refusal import Refusal, json_answer

PREFIX = "/_test"
KEPT_CALLS = 100


@dataclass(slots=True)
class Injected:
    """Faults that tests put in, by deployment.

    `delays` are seconds, `refused` deployments are not connected to, `throttled` holds models' `Retry-After`.
    `calls` keeps the last calls of applications and models; None while the hooks are closed.
    """

    delays: dict[str, float] = field(default_factory=dict[str, float])
    refused: set[str] = field(default_factory=set[str])
    throttled: dict[str, int] = field(default_factory=dict[str, int])
    calls: deque[dict[str, Any]] | None = None

    async def refuses(self, deployment: str, url: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Record a call that is about to be made, wait as told, and say whether it must not be made."""
        if self.calls is None:
            return False
        named = {name.lower(): value for name, value in headers.items()}
        self.calls.append(
            {"deployment": deployment, "url": url, "headers": named, "body": body.decode(errors="replace")}
        )
        await asyncio.sleep(self.delays.get(deployment, 0))
        return deployment in self.refused


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Advance(_Body):
    advance: float


class _Fault(_Body):
    """What to do to every later call of a deployment; the defaults take the faults away again."""

    deployment: str
    delay: float = 0
    refuse: bool = False
    throttle: int | None = None


class TestingHooks:
    """The routes under `/_test`."""

    __test__ = False  # not a class of tests

    def __init__(self, clock: Clock, keys: Keys, injected: Injected) -> None:
        self._clock = clock
        self._keys = keys
        self._injected = injected

    def register(self, app: web.Application) -> None:
        self._injected.calls = deque(maxlen=KEPT_CALLS)
        app.router.add_get(f"{PREFIX}/keys", self.keys)
        app.router.add_get(f"{PREFIX}/calls", self.calls)
        app.router.add_post(f"{PREFIX}/clock", self.advance)
        app.router.add_post(f"{PREFIX}/faults", self.inject)

    async def keys(self, request: web.Request) -> web.Response:
        live = [{**asdict(key), "initiator": key.initiator.owner} for key in self._keys.live()]
        return json_answer(request, live)

    async def calls(self, request: web.Request) -> web.Response:
        return json_answer(request, list(self._injected.calls or ()))

    async def advance(self, request: web.Request) -> web.Response:
        self._clock.advance((await _parsed(request, _Advance)).advance)
        return json_answer(request, {})

    async def inject(self, request: web.Request) -> web.Response:
        fault = await _parsed(request, _Fault)
        self._injected.delays[fault.deployment] = fault.delay
        (self._injected.refused.add if fault.refuse else self._injected.refused.discard)(fault.deployment)
        self._injected.throttled.pop(fault.deployment, None)
        if fault.throttle is not None:
            self._injected.throttled[fault.deployment] = fault.throttle
        return json_answer(request, {})


_T = TypeVar("_T", bound=_Body)


async def _parsed(request: web.Request, kind: type[_T]) -> _T:
    try:
        return kind.model_validate_json(await request.read())
    except ValidationError as error:
        raise Refusal(400, str(error)) from None
