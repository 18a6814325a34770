"""What a deployment offers beside completions: configuration, rating, tokenizing, limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from task.local_core.config import CoreConfig, Deployment, Limit, may_use
from task.local_core.identity import IDENTITY
from task.local_core.keys import Keys
from task.local_core.refusal import PlainAnswer, Refusal, json_answer
from task.local_core.relay import Answering, Relay, read_body
from task.local_core.targets import feature_target


@dataclass(frozen=True, slots=True)
class FeatureCalls:
    """The feature routes: each is passed to the endpoint that the deployment declares for it."""

    config: Callable[[], CoreConfig]
    keys: Keys
    relay: Relay

    def register(self, app: web.Application) -> None:
        add_get, add_post = app.router.add_get, app.router.add_post
        add_get("/v1/deployments/{id:.+}/configuration", self.configuration, allow_head=False)
        add_get("/v1/deployments/{id:.+}/limits", self.limits, allow_head=False)
        add_post("/v1/deployments/{id:.+}/tokenize", self.tokenize)
        add_post("/v1/deployments/{id:.+}/truncate_prompt", self.truncate_prompt)
        add_post("/v1/{id:.+}/rate", self.rate)

    async def configuration(self, request: web.Request) -> web.StreamResponse:
        deployment = self._usable(request)
        endpoint = deployment.features.configuration_endpoint
        return await self._pass_on(request, deployment, endpoint) if endpoint else PlainAnswer(200)

    async def rate(self, request: web.Request) -> web.StreamResponse:
        deployment = self._usable(request)
        endpoint = deployment.features.rate_endpoint
        return await self._pass_on(request, deployment, endpoint) if endpoint else PlainAnswer(200)

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        deployment = self._usable(request)
        return await self._pass_on(request, deployment, deployment.features.tokenize_endpoint)

    async def truncate_prompt(self, request: web.Request) -> web.StreamResponse:
        deployment = self._usable(request)
        return await self._pass_on(request, deployment, deployment.features.truncate_prompt_endpoint)

    async def limits(self, request: web.Request) -> web.Response:
        deployment = self._usable(request)
        limit = self.config().limit(deployment.name, request[IDENTITY].roles)
        return json_answer(request, {name: {"total": total, "used": 0} for name, total in _windows(limit).items()})

    def _usable(self, request: web.Request) -> Deployment:
        deployment = self.config().deployment(request.match_info["id"])
        if deployment is None:
            raise Refusal(404)
        if not may_use(request[IDENTITY].roles, deployment.user_roles):
            raise Refusal(403)
        return deployment

    async def _pass_on(self, request: web.Request, deployment: Deployment, endpoint: str | None) -> web.StreamResponse:
        if endpoint is None:
            raise Refusal(403, "Forbidden deployment")
        body = await read_body(request)
        key = self.keys.mint(request[IDENTITY], deployment.name, request.headers)
        answering = Answering(ended=lambda _: self.keys.end(key))
        try:
            return await self.relay.send(request, [feature_target(request, deployment, endpoint, key)], body, answering)
        finally:
            self.keys.end(key)


def _windows(limit: Limit) -> dict[str, int]:
    return {
        "minuteTokenStats": limit.minute,
        "dayTokenStats": limit.day,
        "weekTokenStats": limit.week,
        "monthTokenStats": limit.month,
        "hourRequestStats": limit.request_hour,
        "dayRequestStats": limit.request_day,
    }
