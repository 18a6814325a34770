"""What the routes share: callers, messages, runs, files, the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request

from task.api.edge.callers import caller_first
from task.api.edge.identity import ApiCaller, Identity
from task.api.openai.completions import Answers
from task.api.openai.files import FileShelf
from task.api.openai.incoming import IncomingMessages, MessageReader
from task.api.openai.schemas import ChatCompletionRequest, ChatRequest, Open, Ours
from task.api.platform.deciding import Deciding
from task.api.platform.idempotency import recalled
from task.api.platform.preparing import Preparing
from task.api.platform.run_request import RunOptions, RunRequest
from task.api.platform.runner import ActiveRun, Runner
from task.errors import Conflict
from task.llm.base import ModelOptions
from task.permissions.decisions import PermissionMode
from task.product import Product
from task.store.records import Run
from task.store.store import Store

AGENT = "general-purpose-agent"
TEMPERATURE, TOP_P, CHAT_TOKENS = 0.7, 1.0, 2048
DOCUMENTED_TOKENS = 4096
MOST_WARNINGS, MOST_NAME = 20, 64
PASSED_ON = (
    "response_format", "frequency_penalty", "presence_penalty", "parallel_tool_calls", "logit_bias", "user",
    "verbosity", "service_tier", "prompt_cache_key", "safety_identifier",
)  # fmt: skip
RETRIES = "x-stainless-retry-count"  # how often OpenAI's client libraries have sent a request before
_CALLER = "task.api.caller"
CHAT_PROMPT = "You are a helpful assistant with access to web search and calculator tools."


@dataclass(frozen=True, slots=True)
class Service:
    product: Product
    heartbeat_seconds: float
    identity: Identity
    runner: Runner
    answers: Answers
    preparing: Preparing
    reader: MessageReader
    shelf: FileShelf
    deciding: Deciding

    def routes(self, tag: str, prefix: str = "") -> APIRouter:
        """A router whose routes know their caller before they read a body."""
        return APIRouter(prefix=prefix, tags=[tag], route_class=caller_first(self.caller))

    async def caller(self, request: Request) -> ApiCaller:
        """The caller, found out (and counted) once for each request."""
        known: ApiCaller | None = request.scope.get(_CALLER)
        if known is None:
            known = request.scope[_CALLER] = await self.identity.caller(request.headers)
        return known

    async def store(self) -> Store:
        return await self.product.store.get()

    def model_of(self, name: str | None) -> str:
        return self.product.model if name in (None, "", AGENT) else str(name)

    async def received(
        self, request: Request, caller: ApiCaller, body: ChatCompletionRequest | ChatRequest
    ) -> IncomingMessages:
        received = await self.reader.read(caller, body.messages)
        return replace(received, retried=request.headers.get(RETRIES, "0") != "0")

    def sampled(self, **given: Any) -> ModelOptions:
        """The request's options, completed by the operator's and the documented defaults."""
        return self.product.options(ModelOptions().over(**given), ModelOptions(temperature=TEMPERATURE, top_p=TOP_P))

    def options(
        self, door: str, body: Ours, received: IncomingMessages, options: ModelOptions, prompt: str | None
    ) -> RunOptions:
        """How to answer: the system prompt is the messages' own, else the field's, else `prompt`."""
        own = next((text for text in (received.prompt, body.system_prompt) if text is not None), prompt)
        mode = PermissionMode(body.permission_mode)
        return RunOptions(door, self.model_of(body.model), own, options, mode=mode, experiment=body.experiment)

    def warnings(self, body: Open, model: str, given: Mapping[str, Any]) -> tuple[str, ...]:
        """What of the request has no effect, or goes beyond what is documented."""
        told = [f"{name[:MOST_NAME]} had no effect: it is not known here" for name in body.unknown[:MOST_WARNINGS]]
        unsent = self.product.unsent(model, ModelOptions().over(**given))
        told += [f"{name} had no effect: the provider of {model} does not take it" for name in unsent]
        tokens = given.get("max_tokens") or 0
        if tokens > DOCUMENTED_TOKENS:
            told.append(f"max_tokens is {tokens}, above the documented {DOCUMENTED_TOKENS}; it was sent as it is")
        return tuple(told)

    def completion_options(self, door: str, body: ChatCompletionRequest, received: IncomingMessages) -> RunOptions:
        stop = [body.stop] if isinstance(body.stop, str) else body.stop
        extra = {name: value for name in PASSED_ON if (value := getattr(body, name)) is not None}
        given: dict[str, Any] = {
            "temperature": body.temperature, "top_p": body.top_p,
            "max_tokens": body.max_completion_tokens or body.max_tokens,
            "stop": stop, "seed": body.seed, "reasoning_effort": body.reasoning_effort, "extra": extra,
        }  # fmt: skip
        choice = body.tool_choice
        options = self.options(door, body, received, self.sampled(**given), None)
        return replace(
            options,
            warnings=self.warnings(body, options.model, given),
            tools=tuple(tool.function.model_dump(exclude_none=True) for tool in body.tools or ()),
            choice=choice if choice is None or isinstance(choice, str) else choice.model_dump(),
        )

    async def started(self, ask: RunRequest) -> ActiveRun:
        """The run that the request asks for: a new one, or one of before that is told again."""
        if ask.again is None:
            return await self.runner.start(ask)
        return self.runner.find(ask.again) or await recalled(await self.store(), ask, ask.again)

    async def begun(self, ask: RunRequest) -> Run:
        """The same, for a caller that does not wait for its end."""
        if ask.again is not None:
            return await (await self.store()).runs.get(ask.caller.owner, ask.again)
        active = await self.runner.start(ask)
        self.runner.detach(active)
        return active.run

    async def resumed(self, caller: ApiCaller, run_id: str | None) -> Run | None:
        """The run that goes on with a suspended one, when all that it asked is answered."""
        ask = await self.preparing.resumed(caller, run_id) if run_id is not None else None
        if ask is None:
            return None
        try:
            return await self.begun(ask)
        except Conflict:  # who answered the last question but one was as late
            return None
