"""What one process shares: models, files, tools, MCP servers, policy, context, store and limits, from the settings."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import aiohttp

from task.approvals.rules import ApprovalRules, CoreClaims
from task.blocking import close_all
from task.context.prompt import ContextPrompt, unknown_persona
from task.conversation.messages import Attachment
from task.conversation.state import StateSeal
from task.core_client.files import DialFiles
from task.errors import SettingsError
from task.llm.base import ModelOptions, Usage
from task.llm.dial import ModelListings
from task.llm.openai import Recording, transcribed_by
from task.llm.transport import READ_SECONDS, new_session
from task.llm.window import ContextWindow
from task.loop import Limits
from task.product.backends import BACKENDS, Backend, ModelFacts, check_backend
from task.product.observing import telemetry_of
from task.product.parts import (
    approval_rules_of,
    check_workspaces,
    command_limits,
    context_tools,
    default_tools,
    live_context,
    mcp_specs,
    policy_of,
    redis_of,
    workspace_of,
)
from task.product.workspaces import Workspaces
from task.prompts import SYSTEM_PROMPT
from task.settings import Settings
from task.settings.installation import STATE_KEY, installation_secret
from task.shared.redis_store import REPLICAS
from task.store.access import StoreAccess
from task.store.trace_records import Price, cost_of, usage_by_model
from task.telemetry.operations import Telemetry
from task.tools.base import BaseTool
from task.tools.deployment.image_generation_tool import ImageGenerationTool
from task.tools.mcp.hub import Issue, MCPHub
from task.tools.models import Caller
from task.tools.offload import Offloader
from task.tools.toolbox import named

MAX_IMAGE_BYTES = 10 * 2**20
MAX_WARNINGS, MAX_NAME = 20, 64
LISTENING = ("dial", "openai")  # the backends that can have speech as text
CONSOLE = "console"  # the door whose tools work in the folder of its process
_OPTIONS = tuple(item.name for item in fields(ModelOptions) if item.name != "extra")


class Product:
    """The parts of one process, each made when it is first asked for.

    What opens connections must be asked for inside the event loop. `context` is None where the settings name no
    definition; `painter` is the deployment that makes pictures, or "off".

    A model may be silent for `read_seconds`.

    Raises:
        SettingsError: the context's definition cannot be used.
    """

    def __init__(self, settings: Settings, read_seconds: float = READ_SECONDS) -> None:
        self._settings, self._read_seconds = settings, read_seconds
        self.provider = settings.backend
        self.endpoint = settings.dial_endpoint
        self.model = settings.deployment_name
        self.painter = settings.deployments.image
        self.link_hosts = tuple(settings.permissions.link_hosts)
        limits = settings.limits
        self.limits = Limits(limits.steps, limits.tool_seconds, limits.run_seconds, limits.run_tokens)
        self.redis = redis_of(settings)
        self.store = StoreAccess(**settings.store_options, redis=self.redis)
        self.context = live_context(settings)
        model = settings.llm
        extra = {"top_k": model.top_k} if model.top_k is not None else {}
        self._options = ModelOptions(settings.temperature, model.top_p, model.max_tokens, extra=extra)

    def check(self) -> None:
        """Find before the first request what a wrong setting would break in it.

        Raises:
            SettingsError: the model's provider cannot be used, two MCP servers have one name, the policy cannot be
                meant, a workspace cannot be one, the address of Redis cannot be used, the packages for spans are
                missing, or the secret of the hidden state can neither be read nor made.
        """
        check_backend(self._settings)
        if self._settings.http.transcription and self._settings.backend not in LISTENING:
            raise SettingsError(f"http.transcription: {self._settings.backend} has no transcription; leave it out.")
        mcp_specs(self._settings)
        policy_of(self._settings)
        check_workspaces(self._settings)
        if self.redis is not None:
            self.redis.check()
        _ = self.seal, self.telemetry

    @cached_property
    def session(self) -> aiohttp.ClientSession:
        return new_session(self._read_seconds, traced=self.telemetry.spans is not None)

    @cached_property
    def telemetry(self) -> Telemetry:
        """What runs are measured with; without metrics, which are for a process that serves them."""
        return telemetry_of(self._settings)

    @cached_property
    def backend(self) -> Backend:
        return BACKENDS[self._settings.backend](self._settings, self.session)

    @cached_property
    def files(self) -> DialFiles:
        return DialFiles(self.endpoint, session=self.session)

    @cached_property
    def listings(self) -> ModelListings:
        return ModelListings(self.session, self.endpoint)

    @cached_property
    def seal(self) -> StateSeal:
        secret = self._settings.state_secret
        path = self._settings.data_dir / STATE_KEY
        return StateSeal((secret.get_secret_value() if secret else installation_secret(path)).encode())

    @cached_property
    def offloader(self) -> Offloader:
        return Offloader(self.files, self._settings.limits.offload_chars)

    @cached_property
    def mcp(self) -> MCPHub:
        return MCPHub(mcp_specs(self._settings), self.files, redis=self.redis)

    @cached_property
    def approval_rules(self) -> ApprovalRules:
        claims = CoreClaims(self.session, self.endpoint)
        # What one replica allows until a time is judged by another.
        return replace(approval_rules_of(self._settings), claims=claims, clock=self.store.now)

    @cached_property
    def tools(self) -> list[BaseTool]:
        """The agent's own tools in their stable order.

        Raises:
            SettingsError: a tool of the settings cannot be loaded, or two tools have one name.
        """
        return default_tools(self._settings, self.session, self.files, self.backend.chat_model, self.redis)

    @cached_property
    def _workspaces(self) -> Workspaces:
        return Workspaces(lambda principal: workspace_of(self._settings, principal), command_limits(self._settings))

    async def workspace_tools(self, caller: Caller) -> list[BaseTool]:
        """The tools of the workspace that the operator has named for the caller."""
        if not self._settings.coding.workspaces:
            return []
        return await self._workspaces.tools(await caller.principal())

    def continues(self, door: str) -> bool:
        """Whether a suspended run of this door has its tools here."""
        return door != CONSOLE

    async def own_tools(self) -> list[BaseTool]:
        """The agent's own tools in a conversation with the persona of the settings."""
        return [*self.tools, *context_tools(self.context, await self.context_prompt())]

    async def offered_tools(self) -> list[BaseTool]:
        """The agent's own tools, and those of the servers that answer without a caller's key, as the policy allows."""
        return (await self.offered())[0]

    async def offered(self) -> tuple[list[BaseTool], tuple[Issue, ...]]:
        """As `offered_tools`, and what is wrong with the servers whose tools are missing."""
        own = await self.own_tools()
        found = await self.mcp.discover(None, named(own))
        key = self._settings.dial_api_key
        own = await self.available(own, key.get_secret_value()) if key else own
        tools = [tool for tool in (*own, *found.tools) if self.approval_rules.policy.offers(tool.name)]
        return tools, found.issues

    async def available(self, tools: Sequence[BaseTool], api_key: str) -> list[BaseTool]:
        """The tools without the one that makes pictures, where Core does not list its deployment for the caller."""
        paints = any(isinstance(tool, ImageGenerationTool) for tool in tools)
        lacking = paints and await self.listings.lacks(self.painter, api_key)
        return [tool for tool in tools if not (lacking and isinstance(tool, ImageGenerationTool))]

    @property
    def prompt(self) -> str:
        """The system prompt of a conversation whose door gives none; the context comes after either."""
        return self._settings.system_prompt or SYSTEM_PROMPT

    async def context_prompt(self, persona: str = "") -> ContextPrompt:
        """What the context definition adds to the system prompt; without `persona` that of the settings.

        Raises:
            InvalidRequest: there is no such persona.
        """
        if self.context is not None:
            return await self.context.prompt(persona)
        if persona:
            raise unknown_persona(persona, ())
        return ContextPrompt()

    def options(self, given: ModelOptions, documented: ModelOptions | None = None) -> ModelOptions:
        """What a model is asked with: the request's options, else the operator's, else the door's documented defaults.

        What none of them sets is the model's own default.
        """
        base = self._options if documented is None else _over(documented, self._options)
        return _over(base, given)

    def without_effect(self, model: str, given: ModelOptions, unknown: Sequence[str]) -> tuple[str, ...]:
        """The warnings for a request's trace: the names of its fields that nothing reads, and of the options that the
        model's provider does not take."""
        unsent = self.backend.profile(model).dropped(given)
        return (
            *(f"{name[:MAX_NAME]} had no effect: it is not known here" for name in unknown[:MAX_WARNINGS]),
            *(f"{name} had no effect: the provider of {model} does not take it" for name in unsent),
        )

    def cost(self, model: str, usage: Usage, of_tools: Mapping[str, Usage]) -> float | None:
        """What a run's tokens cost, those of models behind tools included; None where its model has no price."""
        if model not in self.store.prices:
            return None
        prices = {name: Price(*pair) for name, pair in self.store.prices.items()}
        own = usage - sum(of_tools.values(), Usage())
        return cost_of(model, usage_by_model(model, own, of_tools), prices)

    def window(self, model: str, api_key: str) -> ContextWindow:
        """The room that the model has for a conversation."""
        history = self._settings.history
        chosen = history.max_tokens

        async def limit() -> int | None:
            if chosen is not None or self._facts is None:
                return chosen
            return await self._facts.request_tokens(model, api_key)

        return ContextWindow(limit, history.max_length)

    async def chat_models(self, api_key: str) -> list[str]:
        """The chat models that Core lists for the caller, without the one that makes pictures."""
        found = await self.listings.chat_models(api_key) if self.backend.listed else []
        return [name for name in found if name != self.painter or name == self.model]

    async def listed_models(self, api_key: str) -> list[str]:
        """The models to choose from, as their provider lists them; none where it does not."""
        if self.backend.models is not None:
            return await self.backend.models()
        return await self.chat_models(api_key)

    async def transcribe(self, deployment: str, recording: Recording, caller: Caller) -> str:
        """What is said in the recording. Raises `ProviderError`."""
        if self.backend.transcribe is not None:
            return await self.backend.transcribe(deployment, recording)
        return await transcribed_by(self.backend.chat_model(deployment, caller), recording)

    async def accepts_images(self, model: str, api_key: str) -> bool:
        """Whether the model takes pictures; every model that nothing describes is believed to."""
        return self._facts is None or await self._facts.accepts_images(model, api_key)

    @property
    def _facts(self) -> ModelFacts | None:
        return self.listings if self.backend.listed else self.backend.facts

    async def image_url(self, image: Attachment, api_key: str) -> str | None:
        """The picture's URL as the model can use it, or None when it has none.

        Raises:
            ToolError: the picture cannot be downloaded.
        """
        if image.data is not None:
            return f"data:{image.type};base64,{image.data}"
        if image.url is None or "://" in image.url or image.url.startswith("data:"):
            return image.url if image.url and image.url.startswith("data:") else None
        if self.backend.fetches_files:
            self.files.check(image.url, api_key)
            return image.url
        file = await self.files.download(image.url, api_key, MAX_IMAGE_BYTES)
        return f"data:{image.type};base64,{base64.b64encode(file.content).decode()}"

    async def warm_up(self) -> None:
        """Load in a thread what the first requests would otherwise wait for."""
        await self.files.open()
        await asyncio.to_thread(import_module, "jsonschema")
        await self.store.get_if_available()
        if self.redis is not None:
            await self.redis.hold(REPLICAS, self.redis.own_id)

    async def close(self) -> None:
        """Close what was opened."""
        opened = vars(self)
        closes = [tool.close for tool in opened.get("tools", ())]
        closes += [
            opened[name].close
            for name in ("mcp", "_workspaces", "backend", "session", "files", "telemetry")
            if name in opened
        ]
        await close_all(*closes, self.store.close, *([self.redis.close] if self.redis is not None else []))


def _over(base: ModelOptions, given: ModelOptions) -> ModelOptions:
    chosen: dict[str, Any] = {name: value for name in _OPTIONS if (value := getattr(given, name)) is not None}
    if given.extra:
        chosen["extra"] = {**base.extra, **given.extra}
    return replace(base, **chosen) if chosen else base


def bare_product(endpoint: str) -> Product:
    """The product with default settings before one DIAL Core; states are sealed for this process only."""
    return Product(Settings.model_validate({"dial_endpoint": endpoint, "state_secret": secrets.token_urlsafe(32)}))
