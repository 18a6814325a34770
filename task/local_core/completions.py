"""`POST /openai/deployments/{id}/chat/completions` and its siblings: Core's checks, then the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from aiohttp import web

from task.local_core.access import AccessRules
from task.local_core.clock import Clock
from task.local_core.config import Application, CoreConfig, Deployment, Limit, Model, may_use
from task.local_core.identity import IDENTITY, Identity, PerRequestKey
from task.local_core.keys import Keys, identity_of
from task.local_core.refusal import Refusal
from task.local_core.relay import Answering, Relay, read_body
from task.local_core.sharing import AnswerWatch, request_files
from task.local_core.targets import completion_targets
from task.local_core.testing_hooks import Injected

ROUTE = r"/{slashes:/*}openai/deployments/{id:.+?}/{operation:chat/completions|completions|embeddings}"
BLOCK_SECONDS = 30.0  # Core 0.25 keeps everybody away from an application for so long after a 4xx
SWALLOWED = frozenset({429, 502, 503, 504})


class LocalModel(Protocol):
    """A model that local Core answers for itself."""

    @property
    def name(self) -> str: ...

    async def answer(
        self, request: web.Request, document: Mapping[str, Any], answering: Answering
    ) -> web.StreamResponse: ...


@dataclass(slots=True)
class Completions:
    """The completion routes and what they need; `blocked` is Core 0.25's memory of failed applications."""

    config: Callable[[], CoreConfig]
    keys: Keys
    access: AccessRules
    relay: Relay
    clock: Clock
    injected: Injected
    local_models: Sequence[LocalModel] = ()
    core025: bool = False
    blocked: dict[str, float] = field(default_factory=dict[str, float])

    def register(self, app: web.Application) -> None:
        app.router.add_post(ROUTE, self.complete)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if "application/json" not in request.headers.get("Content-Type", ""):
            raise Refusal(415, "Only application/json is supported")
        identity = request[IDENTITY]
        deployment = self._usable(request.match_info["id"], identity)
        self._check_limit(deployment, identity)
        body = await read_body(request)
        document = _object(body)
        files = self._readable(document, identity)
        key = self.keys.mint(identity, deployment.name, request.headers, dict.fromkeys(files, "READ"))
        answering = self._answering(request, deployment, key)
        try:
            if (local := self._local_model(deployment.name)) is not None:
                return await self._answer_here(request, local, deployment.defaults | document, answering)
            body = self._prepared(body, document, deployment)
            return await self._call(request, deployment, key, body, answering)
        finally:
            self.keys.end(key)

    def _usable(self, name: str, identity: Identity) -> Deployment:
        deployment = self.config().deployment(name)
        if deployment is None:
            raise Refusal(404, f"Unknown application: {name}")
        if not may_use(identity.roles, deployment.user_roles):
            raise Refusal(403, f"Forbidden deployment: {name}")
        if not deployment.endpoint and self._local_model(name) is None:
            raise Refusal(503)
        if identity.key is not None and not deployment.features.accessible_by_per_request_key:
            raise Refusal(403, f"Deployment {name} is not accessible by {identity.key.deployment}")
        return deployment

    def _local_model(self, name: str) -> LocalModel | None:
        return next((model for model in self.local_models if model.name == name), None)

    def _check_limit(self, deployment: Deployment, identity: Identity) -> None:
        if not isinstance(deployment, Model):
            return
        limit = self.config().limit(deployment.name, identity.roles)
        if not limit.positive:
            raise Refusal(403, {"message": "Access denied", "code": "403"})
        retry_after = self.injected.throttled.get(deployment.name)
        if retry_after is not None:
            error = {"message": _limit_text(limit), "code": "429"}
            raise Refusal(429, error, headers={"Retry-After": str(retry_after)})

    def _readable(self, document: dict[str, Any], identity: Identity) -> list[str]:
        files = request_files(document, strict_nulls=self.core025)
        for url in files:
            if not self.access.may_read(identity, url):
                raise Refusal(403, f"Access denied to the file {url}")
        return files

    def _prepared(self, body: bytes, document: dict[str, Any], deployment: Deployment) -> bytes:
        added = {name: value for name, value in deployment.defaults.items() if name not in document}
        if isinstance(deployment, Model) and deployment.override_name:
            added["model"] = deployment.override_name
        if self.core025 and isinstance(deployment, Application) and deployment.application_properties is not None:
            fields = document.get("custom_fields")
            old = fields if isinstance(fields, dict) else {}
            added["custom_fields"] = old | {"application_properties": deployment.application_properties}
        return orjson.dumps(document | added) if added else body

    async def _answer_here(
        self, request: web.Request, model: LocalModel, document: dict[str, Any], answering: Answering
    ) -> web.StreamResponse:
        if request.match_info["operation"] != "chat/completions":
            raise Refusal(404)
        return await model.answer(request, document, answering)

    async def _call(
        self, request: web.Request, deployment: Deployment, key: PerRequestKey, body: bytes, answering: Answering
    ) -> web.StreamResponse:
        self._check_block(deployment)
        targets = completion_targets(request, deployment, key, core025=self.core025)
        try:
            return await self.relay.send(request, targets, body, answering)
        except Refusal as refusal:
            if refusal.status == 503:
                self._note(deployment, 429)
            raise

    def _answering(self, request: web.Request, deployment: Deployment, key: PerRequestKey) -> Answering:
        failed: str | dict[str, Any] = "Failed to connect to origin"
        swallowed = SWALLOWED | self.config().retriable_error_codes

        def ended(status: int) -> None:
            self.keys.end(key)
            self._note(deployment, status)

        return Answering(
            unreachable=Refusal(502, failed if self.core025 else {"message": failed, "code": "502"}),
            broken=Refusal(502, "No route"),
            is_swallowed=swallowed.__contains__,
            watch=lambda content_type: self._watch(request[IDENTITY], key, content_type),
            ended=ended,
        )

    def _watch(self, caller: Identity, key: PerRequestKey, content_type: str) -> AnswerWatch | None:
        receiver = caller.key
        if receiver is None:
            return None
        return AnswerWatch(
            f"files/{self.access.appdata_of(identity_of(key))}/",
            lambda urls: self.keys.add_rights(receiver, urls, "READ_WRITE"),
            events="text/event-stream" in content_type,
        )

    def _check_block(self, deployment: Deployment) -> None:
        if self.blocked.get(deployment.name, 0) > self.clock.now():
            raise Refusal(502, "No route")

    def _note(self, deployment: Deployment, status: int) -> None:
        if self.core025 and 400 <= status < 500:
            self.blocked[deployment.name] = self.clock.now() + BLOCK_SECONDS


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refusal(400) from None
    if not isinstance(document, dict):
        raise Refusal(400)
    return document


def _limit_text(limit: Limit) -> str:
    windows = (("Minute", limit.minute), ("Day", limit.day), ("Week", limit.week), ("Month", limit.month))
    used = " ".join(f"{name} limit: {allowed} / {allowed} tokens." for name, allowed in windows)
    return f"Hit token rate limit. {used}"
