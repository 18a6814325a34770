"""Services and Profile: what one process opens and closes once, and what one agent is."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING

import aiohttp

from task.approvals.approvals import ApprovalRules
from task.closing import close_all
from task.context.prompt import ContextPrompt, LiveContext, unknown_persona
from task.core_client.files import DialFiles
from task.llm.base import ModelOptions
from task.llm.dial import ModelListings
from task.llm.openai import Recording, transcribed_by
from task.llm.window import ContextWindow
from task.loop import Limits
from task.memory.memories import Memories
from task.permissions.decisions import PermissionMode
from task.permissions.names import names_of
from task.product.backends import Backend
from task.product.names import Deployments, named_tools
from task.product.skills import skill_tools
from task.prompts import SYSTEM_PROMPT
from task.settings.sections import AgentSettings
from task.shared.redis_store import REPLICAS, RedisStore
from task.skills import Skill
from task.store.access import StoreAccess
from task.telemetry.operations import Telemetry
from task.tools.base import Alias, BaseTool
from task.tools.deployment.image_generation_tool import ImageGenerationTool
from task.tools.mcp.hub import MCPHub, ServerSpec
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.results import MCPFailure
from task.tools.models import Caller
from task.tools.offload import Offloader, ReadContextDocumentTool
from task.tools.toolbox import named

if TYPE_CHECKING:
    from task.product.applications import Applications
    from task.tools.workspace.project import ProjectNotes

MAX_WARNINGS, MAX_NAME = 20, 64
CONSOLE, EDITOR = "console", "acp"  # the doors whose tools work in a folder of their process
FOLDER = "folder"  # in the metadata of an editor's runs
_OPTIONS = tuple(item.name for item in fields(ModelOptions) if item.name != "extra")


async def no_tools(_: Caller) -> list[BaseTool]:
    """The tools of a workspace where there is none."""
    return []


@dataclass(frozen=True, slots=True)
class Services:
    """Connections, caches and the store of one process; `task.product.opened` makes them.

    `endpoint` is the address of DIAL Core, `core_key` the agent's own key there, or empty. `memory` is None where the
    operator allows none. `closes` end what was opened besides these, in their order.
    """

    endpoint: str
    session: aiohttp.ClientSession
    files: DialFiles
    listings: ModelListings
    deployments: Deployments
    store: StoreAccess
    mcp: MCPHub
    telemetry: Telemetry
    applications: Applications
    redis: RedisStore | None = None
    core_key: str = ""
    closes: tuple[Callable[[], Awaitable[object]], ...] = ()
    memory: Memories | None = None

    async def warm_up(self) -> None:
        """Load in a thread what the first requests would otherwise wait for."""
        await asyncio.to_thread(import_module, "jsonschema")
        await self.store.get_if_available()
        if self.redis is not None:
            await self.redis.hold(REPLICAS, self.redis.own_id)

    async def close(self) -> None:
        """Close what was opened."""
        redis = [self.redis.close] if self.redis is not None else []
        await close_all(*self.closes, self.session.close, self.telemetry.close, self.store.close, *redis)


@dataclass(frozen=True, slots=True)
class Profile:
    """One agent. A door makes the one of its request with `replace`.

    `context` is None where the settings name no definition, `persona` empty for the one of the settings. `tools` are
    the agent's own in their stable order; `workspace_tools` finds those of the folder that the caller may use, and
    `folder` is the one where this process works, if any. `history_tokens` and `history_length` limit the conversation
    that a model gets; `painter` is the deployment that makes pictures, or "off"; `aliases` are names by which the door
    offers tools; `annotations`: citations in DIAL are in the text, too; `timezone` is that of callers who name none,
    `clock` gives Unix time. `names` are deployments, applications and toolsets that are tools by their name alone,
    `servers` MCP servers that a client names for itself, `folders` files and folders in DIAL as context; `application`
    is the id of the application in DIAL that the profile is of, or empty: it is part of every key of what is kept
    between requests. `builtin` is an expression for the names of the own and the servers' tools that it keeps, None for
    all; `starters` are titles and texts in place of the door's, `skills` what the model may read for a kind of task,
    `skill_urls` addresses of further ones in DIAL. Tools of servers that take more than `tool_share` of the model's
    window are found, not sent; `agents` is None where the agent has no sub-agents. `project` reads what the project
    that is worked on says to agents. The tools of the MCP server that is `withheld` are not offered.
    """

    backend: Backend
    model: str
    prompt: str = SYSTEM_PROMPT
    context: LiveContext | None = None
    persona: str = ""
    tools: Sequence[BaseTool] = ()
    workspace_tools: Callable[[Caller], Awaitable[list[BaseTool]]] = no_tools
    folder: str = ""
    rules: ApprovalRules = field(default_factory=ApprovalRules)
    mode: PermissionMode = PermissionMode.DEFAULT
    limits: Limits = field(default_factory=Limits)
    options: ModelOptions = field(default_factory=ModelOptions)
    offloader: Offloader = field(default_factory=lambda: Offloader(None))
    history_tokens: int | None = None
    history_length: int | None = None
    link_hosts: tuple[str, ...] = ()
    painter: str = "off"
    aliases: Sequence[Alias] = ()
    annotations: bool = True
    timezone: str = "UTC"
    clock: Callable[[], float] = time.time
    names: tuple[str, ...] = ()
    servers: tuple[ServerSpec, ...] = ()
    folders: tuple[str, ...] = ()
    application: str = ""
    builtin: str | None = None
    starters: tuple[tuple[str, str], ...] = ()
    tool_share: float = 0.05
    skills: tuple[Skill, ...] = ()
    skill_urls: tuple[str, ...] = ()
    agents: AgentSettings | None = None
    project: Callable[[], ProjectNotes] | None = None
    withheld: str = ""

    async def context_prompt(self, persona: str = "", found: Callable[[str], object] = lambda _: None) -> ContextPrompt:
        """What the context adds to the system prompt; without `persona` with the one of the profile.

        `found` is called with what was found of the project's own notes.

        Raises:
            InvalidRequest: there is no such persona.
        """
        persona, prompt = persona or self.persona, ContextPrompt()
        if self.context is not None:
            prompt = await self.context.prompt(persona)
        elif persona:
            raise unknown_persona(persona, ())
        if self.project is None:
            return prompt
        notes = await asyncio.to_thread(self.project)
        text = "\n\n".join(filter(None, (prompt.text, notes.text)))
        if notes.found:
            found(notes.found)
        return replace(prompt, text=text, foreign=bool(notes.text))

    async def own_tools(self) -> list[BaseTool]:
        """The agent's own tools in a conversation with the profile's persona."""
        return [*self.tools, *context_tools(self.context, await self.context_prompt())]

    def options_for(self, given: ModelOptions, documented: ModelOptions | None = None) -> ModelOptions:
        """What a model is asked with: the request's options, else the operator's, else the door's documented defaults.

        What none of them sets is the model's own default.
        """
        return _over(self.options if documented is None else _over(documented, self.options), given)

    def without_effect(self, model: str, given: ModelOptions, unknown: Sequence[str] = ()) -> tuple[str, ...]:
        """The warnings for a request's trace: the names of its fields that nothing reads, and of the options that the
        model's provider does not take."""
        unsent = self.backend.dialect(model).dropped(given)
        return (
            *(f"{name[:MAX_NAME]} had no effect: it is not known here" for name in unknown[:MAX_WARNINGS]),
            *(f"{name} had no effect: the provider of {model} does not take it" for name in unsent),
        )

    def window(self, api_key: str) -> ContextWindow:
        """The room that the model has for a conversation."""

        async def limit() -> int | None:
            if self.history_tokens is not None or self.backend.facts is None:
                return self.history_tokens
            return await self.backend.facts.request_tokens(self.model, api_key)

        return ContextWindow(limit, self.history_length)

    async def listed_models(self, api_key: str) -> list[str]:
        """The models to choose from, as their provider lists them; none where it does not."""
        found = await self.backend.models(api_key) if self.backend.models is not None else []
        return [name for name in found if name != self.painter or name == self.model or not self.backend.listed]

    async def transcribe(self, deployment: str, recording: Recording, caller: Caller) -> str:
        """What is said in the recording. Raises `ProviderError`."""
        if self.backend.transcribe is not None:
            return await self.backend.transcribe(deployment, recording)
        return await transcribed_by(self.backend.chat_model(deployment, caller), recording)

    def kept(self, tools: Sequence[BaseTool]) -> list[BaseTool]:
        """Those of the tools that an application keeps; the ones that it names stay. Withheld ones do not."""
        if not (self.builtin or self.withheld):
            return [*tools]
        wanted, withheld = re.compile(self.builtin or ""), self.withheld or None
        found = [tool for tool in tools if tool.by_name or any(map(wanted.search, names_of(tool.name)))]
        return [tool for tool in found if not isinstance(tool, MCPTool) or tool.client.name != withheld]

    def continues(self, door: str, folder: str) -> bool:
        """Whether a suspended run of this door has its tools here, those of its folder, where it names one."""
        return door not in (CONSOLE, EDITOR) or (self.folder != "" and folder in ("", self.folder))


def context_tools(context: LiveContext | None, prompt: ContextPrompt) -> list[BaseTool]:
    """The tool that reads what does not fit into this prompt, where there is anything."""
    return [ReadContextDocumentTool(prompt.left_out, context.read)] if context is not None and prompt.left_out else []


async def available(
    services: Services, profile: Profile, tools: Sequence[BaseTool], api_key: str
) -> Sequence[BaseTool]:
    """The tools without the one that makes pictures, where Core does not list its deployment for the caller."""
    others = [tool for tool in tools if not isinstance(tool, ImageGenerationTool)]
    return others if len(others) < len(tools) and await services.listings.lacks(profile.painter, api_key) else tools


async def offered(
    services: Services, profile: Profile, caller: Caller | None = None
) -> tuple[list[BaseTool], tuple[MCPFailure, ...]]:
    """The agent's own tools, those of the caller's workspace, and those of the servers, without a caller of those that
    answer without a key, as the policy allows; and what is wrong with the servers whose tools are missing."""
    own = [*await profile.own_tools(), *(await profile.workspace_tools(caller) if caller is not None else ())]
    own += skill_tools(services, profile, profile.skills) if profile.skills else []
    found = await named_tools(services, profile, caller, named(own))
    key = caller.api_key if caller is not None else services.core_key
    tools = [*(await available(services, profile, own, key) if key else own), *found.tools]
    return profile.kept([tool for tool in tools if profile.rules.policy.offers(tool.name)]), found.issues


def _over(base: ModelOptions, given: ModelOptions) -> ModelOptions:
    chosen: dict[str, object] = {name: value for name in _OPTIONS if (value := getattr(given, name)) is not None}
    if given.extra:
        chosen["extra"] = {**base.extra, **given.extra}
    return replace(base, **chosen) if chosen else base
