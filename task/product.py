"""What one process shares: models, files, tools, MCP servers, policy, context, store and limits, from the settings."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from urllib.parse import quote, urlsplit

import aiohttp

from task.approvals.answers import ApprovalRules
from task.approvals.claims import CoreClaims
from task.blocking import close_all
from task.context.dcm_manager import ContextOptions, DCMManager
from task.context.prompt import LiveContext
from task.conversation.messages import Attachment
from task.conversation.state import StateSeal
from task.documents.pool import ReaderLimits, ReaderPool
from task.embedding.client import Embedder, EmbedderOptions, default_folder
from task.errors import DCMInitError, SettingsError
from task.llm.base import ChatModel, ModelOptions
from task.llm.chat_request import PROFILES, Profile, profile_for
from task.llm.dial import DialChatModel, ModelListings
from task.llm.openai import OpenAIChatModel
from task.llm.transport import Retries, new_session
from task.llm.window import ContextWindow
from task.loop import Limits
from task.permissions.effects import Effect
from task.permissions.policy import DEFAULT_RULES, Policy, Rule
from task.prompts import SYSTEM_PROMPT
from task.settings import McpServerSettings, Settings, process_environment
from task.settings.installation import installation_secret
from task.settings.sections import RuleSettings
from task.store.access import StoreAccess
from task.tools.base import BaseTool
from task.tools.calculator.calculator_tool import CalculatorTool
from task.tools.declare import load_tools
from task.tools.deployment.deployment_tool import DeploymentAccess, DeploymentSpec, DeploymentTool
from task.tools.deployment.image_generation_tool import ImageGenerationTool
from task.tools.dial_files import DialFiles
from task.tools.files.file_content_extraction_tool import FileContentExtractionTool
from task.tools.mcp.hub import MCPHub, ServerSpec
from task.tools.models import Caller
from task.tools.offload import Offloader, ReadFileLinesTool, SearchInFileTool
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool
from task.tools.rag.document_cache import DocumentCache
from task.tools.rag.index_store import RedisStore
from task.tools.rag.rag_tool import RagOptions, RagTool
from task.tools.rag.shelf import ShelfLimits
from task.tools.toolbox import named

logger = logging.getLogger(__name__)

MAX_IMAGE_BYTES = 10 * 2**20
_RAG_LIBRARIES = ("bm25s", "faiss", "langchain_text_splitters", "numpy", "sentence_transformers", "torch")
# The embedding process gets only what fetching a model from a hub needs, and where it is kept.
_EMBEDDER_VARIABLES = frozenset({
    "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "NO_PROXY",
    "PATH", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "TMPDIR", "XDG_CACHE_HOME",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of model provider.

    `fetches_files`: its models get DIAL files by URL, where others get pictures inline. `listed`: Core's listings
    describe its models. `base_url` tells which provider's differences apply; None: the model's name does.
    """

    chat_model: Callable[[str, Caller], ChatModel]
    fetches_files: bool
    listed: bool
    base_url: str | None = None


def _dial_backend(settings: Settings, session: aiohttp.ClientSession) -> Backend:
    profile, retries = _profile(settings), _retries(settings)

    def chat_model(name: str, caller: Caller) -> ChatModel:
        return DialChatModel(
            session, settings.dial_endpoint, name, caller.api_key, caller.headers, profile=profile, retries=retries
        )

    return Backend(chat_model, fetches_files=True, listed=True)


def _openai_backend(settings: Settings, session: aiohttp.ClientSession) -> Backend:
    profile, retries = _profile(settings), _retries(settings)
    url = settings.openai_base_url or "https://api.openai.com/v1"
    key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else ""

    def chat_model(name: str, caller: Caller) -> ChatModel:
        return OpenAIChatModel(session, url, key, name, profile=profile, retries=retries)

    return Backend(chat_model, fetches_files=False, listed=False, base_url=url)


BACKENDS: Mapping[str, Callable[[Settings, aiohttp.ClientSession], Backend]] = {
    "dial": _dial_backend,
    "openai": _openai_backend,
}


class Product:
    """The parts of one process, each made when it is first asked for.

    What opens connections must be asked for inside the event loop. `context` is None where the settings name no
    definition; `painter` is the deployment that makes pictures, or "off".

    Raises:
        SettingsError: the context's definition cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.endpoint = settings.dial_endpoint
        self.model = settings.deployment_name
        self.painter = settings.deployments.image
        self.link_hosts = tuple(settings.permissions.link_hosts)
        limits = settings.limits
        self.limits = Limits(limits.steps, limits.tool_seconds, limits.run_seconds, limits.run_tokens)
        self.store = StoreAccess(**settings.store_options)
        manager = context_manager(settings)
        self.context = LiveContext(manager, settings.context.persona) if manager is not None else None
        model = settings.llm
        extra = {"top_k": model.top_k} if model.top_k is not None else {}
        self._options = ModelOptions(settings.temperature, model.top_p, model.max_tokens, extra=extra)

    def open(self) -> None:
        """Make what a wrong setting would break; call it inside the event loop.

        Raises:
            SettingsError: the profile is unknown, or the secret of the hidden state can neither be read nor made.
        """
        _ = self.backend, self.seal, self.mcp, self.approval_rules

    @cached_property
    def session(self) -> aiohttp.ClientSession:
        return new_session()

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
        path = self._settings.data_dir / "state.key"
        return StateSeal((secret.get_secret_value() if secret else installation_secret(path)).encode())

    @cached_property
    def offloader(self) -> Offloader:
        return Offloader(self.files, self._settings.limits.offload_chars)

    @cached_property
    def mcp(self) -> MCPHub:
        return MCPHub(mcp_specs(self._settings), self.files)

    @cached_property
    def approval_rules(self) -> ApprovalRules:
        return replace(approval_rules_of(self._settings), claims=CoreClaims(self.session, self.endpoint))

    @cached_property
    def tools(self) -> list[BaseTool]:
        """The agent's own tools in their stable order.

        Raises:
            SettingsError: a tool of the settings cannot be loaded, or two tools have one name.
        """
        return default_tools(self._settings, self)

    async def offered_tools(self) -> list[BaseTool]:
        """The agent's own tools, and those of the servers that answer without a caller's key."""
        found = await self.mcp.discover(None, named(self.tools))
        return [*self.tools, *found.tools]

    async def prompt(self) -> str:
        """The system prompt of a conversation whose door gives none."""
        prompt = self._settings.system_prompt or SYSTEM_PROMPT
        added = await self.context.prompt() if self.context is not None else ""
        return f"{prompt}\n\n{added}" if added else prompt

    def options(self, given: ModelOptions, documented: ModelOptions | None = None) -> ModelOptions:
        """What a model is asked with: the request's options, else the operator's, else the door's documented defaults.

        What none of them sets is the model's own default.
        """
        base = documented or ModelOptions()
        for over in (self._options, given):
            chosen = {item.name: getattr(over, item.name) for item in fields(over) if item.name != "extra"}
            base = replace(base.over(**chosen), extra={**base.extra, **over.extra})
        return base

    def unsent(self, model: str, given: ModelOptions) -> tuple[str, ...]:
        """The options that the model's provider does not take."""
        return (_profile(self._settings) or profile_for(model, self.backend.base_url)).dropped(given)

    def window(self, model: str, api_key: str) -> ContextWindow:
        """The room that the model has for a conversation."""
        chosen = self._settings.history.max_tokens

        async def limit() -> int | None:
            if chosen is not None or not self.backend.listed:
                return chosen
            return await self.listings.request_tokens(model, api_key)

        return ContextWindow(limit)

    async def chat_models(self, api_key: str) -> list[str]:
        """The chat models that Core lists for the caller, without the one that makes pictures."""
        found = await self.listings.chat_models(api_key) if self.backend.listed else []
        return [name for name in found if name != self.painter or name == self.model]

    async def accepts_images(self, model: str, api_key: str) -> bool:
        """Whether the model takes pictures; every model that Core does not list is believed to."""
        return not self.backend.listed or await self.listings.accepts_images(model, api_key)

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
            return image.url
        file = await self.files.download(image.url, api_key, MAX_IMAGE_BYTES)
        return f"data:{image.type};base64,{base64.b64encode(file.content).decode()}"

    async def warm_up(self) -> None:
        """Load in a thread what the first requests would otherwise wait for."""
        await self.files.open()
        await asyncio.to_thread(import_module, "jsonschema")
        await self.store.get_if_available()

    async def close(self) -> None:
        """Close what was opened."""
        opened = vars(self)
        closes = [tool.close for tool in opened.get("tools", ())]
        closes += [opened[name].close for name in ("mcp", "session", "files") if name in opened]
        await close_all(*closes, self.store.close)


def bare_product(endpoint: str) -> Product:
    """The product with default settings before one DIAL Core; states are sealed for this process only."""
    return Product(Settings.model_validate({"dial_endpoint": endpoint, "state_secret": secrets.token_urlsafe(32)}))


def default_tools(settings: Settings, product: Product | None = None) -> list[BaseTool]:
    """The tools of the settings in their stable order; without a product only good for looking at.

    Raises:
        SettingsError: a tool of the settings cannot be loaded, or two tools have one name.
    """
    files = product.files if product else None
    limits = settings.limits
    reading = ReaderLimits(seconds=limits.reader_seconds, memory_bytes=limits.reader_bytes)
    readers = ReaderPool(reading, processes=limits.reader_processes)
    tools: list[BaseTool] = [
        FileContentExtractionTool(
            settings.dial_endpoint, files=files, max_size=limits.max_download_bytes, readers=readers
        ),
        *_rag_tools(settings, product, readers),
        CalculatorTool(),
        *_interpreter_tools(settings, files),
        *_deployment_tools(settings, product),
        *([ReadFileLinesTool(files), SearchInFileTool(files)] if files else []),
        *load_tools(settings.tool_paths),
    ]
    named(tools)
    return tools


def _rag_tools(settings: Settings, product: Product | None, readers: ReaderPool) -> list[RagTool]:
    rag = settings.rag
    if not rag.enabled:
        return []
    if missing := [name for name in _RAG_LIBRARIES if find_spec(name) is None]:
        logger.warning("no search in documents: install the `rag` extra (there is no %s)", ", ".join(missing))
        return []
    environment = {name: value for name, value in process_environment().items() if name in _EMBEDDER_VARIABLES}
    embedding = EmbedderOptions(
        settings.embedding_model, rag.precision, rag.threads, tuple(sorted(environment.items()))
    )
    options = RagOptions(
        k=rag.k,
        context_tokens=rag.context_tokens,
        whole_tokens=rag.whole_tokens,
        seconds=rag.seconds,
        counts_with="execute_code" if settings.pyinterpreter_mcp_url else "",
        limits=ShelfLimits(settings.limits.max_download_bytes, rag.max_chunks, rag.cache_seconds),
    )
    return [
        RagTool(
            settings.dial_endpoint,
            rag.deployment or settings.deployment_name,
            DocumentCache.create(rag.cache_seconds, max_bytes=rag.cache_bytes),
            files=product.files if product else None,
            readers=readers,
            embedder=Embedder(rag.process_dir or default_folder(), embedding),
            model=product.backend.chat_model if product else None,
            store=RedisStore(rag.store_url.get_secret_value()) if rag.store_url else None,
            options=options,
        )
    ]


def _interpreter_tools(settings: Settings, files: DialFiles | None) -> list[PythonCodeInterpreterTool]:
    url = settings.pyinterpreter_mcp_url
    if url is None:
        return []
    token, most = own_token(settings, url), settings.limits.max_upload_bytes
    return [PythonCodeInterpreterTool(settings.dial_endpoint, url, token=token, files=files, max_bytes=most)]


def _deployment_tools(settings: Settings, product: Product | None) -> list[DeploymentTool]:
    endpoint, chosen, max_bytes = settings.dial_endpoint, settings.deployments, settings.limits.max_upload_bytes
    access = DeploymentAccess(product.session, product.files, max_bytes) if product else DeploymentAccess()
    tools = [DeploymentTool(endpoint, DeploymentSpec(**tool.model_dump()), access=access) for tool in chosen.tools]
    if chosen.image == "off":
        return tools
    painting = ImageGenerationTool(endpoint, deployment=chosen.image, seconds=chosen.image_seconds, access=access)
    return [painting, *tools]


def mcp_specs(settings: Settings) -> list[ServerSpec]:
    """The MCP servers of the settings.

    Raises:
        SettingsError: two of them have one name.
    """
    url = settings.ddg_mcp_url
    search = [ServerSpec("search", url, token=own_token(settings, url))] if url else []
    servers = [*search, *(_mcp_server(server, settings.dial_endpoint) for server in settings.mcp_servers)]
    names = [server.name for server in servers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"AGENT_MCP_SERVERS: there are two servers called {twice[0]!r}; rename one of them")
    return servers


def own_token(settings: Settings, url: str) -> str | None:
    """The token of our own servers, unless `url` leads to somebody else's."""
    host = urlsplit(url).hostname or ""
    near = host == "127.0.0.1" or ("." not in host and ":" not in host)
    return settings.mcp_token.get_secret_value() if settings.mcp_token and near else None


def _mcp_server(server: McpServerSettings, dial_endpoint: str) -> ServerSpec:
    toolset = server.url.removeprefix("toolset:") if server.url.startswith("toolset:") else None
    return ServerSpec(
        server.name,
        f"{dial_endpoint}/v1/toolset/{quote(toolset)}/mcp" if toolset else server.url,
        server.token.get_secret_value() if server.token else None,
        server.headers,
        frozenset(server.tools) if server.tools is not None else None,
        server.forward_key or toolset is not None,
        server.seconds,
    )


def approval_rules_of(settings: Settings) -> ApprovalRules:
    """The policy of the settings, and how long questions and grants last."""
    chosen = settings.permissions
    return ApprovalRules(
        policy_of(settings), open_seconds=chosen.open_minutes * 60, grant_seconds=chosen.grant_hours * 3600
    )


def policy_of(settings: Settings) -> Policy:
    """The rules of the settings, then the product's own."""
    chosen = settings.permissions
    rules = [rule_of(rule) for rule in chosen.rules]
    rules += DEFAULT_RULES if chosen.default_rules else ()
    return Policy(tuple(rules), only=frozenset(chosen.tools) if chosen.tools is not None else None)


def rule_of(rule: RuleSettings) -> Rule:
    """A rule of the settings as the policy's."""
    effects = frozenset(map(Effect, rule.effects)) if rule.effects is not None else None
    return Rule(rule.action, rule.tool, effects, rule.path, rule.command, rule.host, rule.known_url, rule.trusted)


def context_manager(settings: Settings) -> DCMManager | None:
    """The context that the settings name, read; None where they name none.

    Raises:
        SettingsError: the definition cannot be read, or it has no such persona.
    """
    chosen = settings.context
    if chosen.definition_path is None:
        return None
    options = ContextOptions(
        max_document_bytes=chosen.max_document_bytes,
        max_prompt_bytes=chosen.max_prompt_bytes,
        cached_documents=chosen.cached_documents,
        allow_absolute_paths=chosen.allow_absolute_paths,
        allow_parent_traversal=chosen.allow_parent_traversal,
        section_pattern=chosen.section_pattern,
    )
    manager = DCMManager(str(chosen.definition_path), options=options)
    try:
        manager.initialize()
    except DCMInitError as error:
        raise SettingsError(f"AGENT_CONTEXT__DEFINITION_PATH: {error} Correct the path, or remove it.") from error
    if chosen.persona and manager.get_persona(chosen.persona) is None:
        known = ", ".join(manager.persona_ids()) or "none"
        raise SettingsError(f"AGENT_CONTEXT__PERSONA: there is no persona {chosen.persona!r}. There are: {known}.")
    return manager


def _profile(settings: Settings) -> Profile | None:
    name = settings.profile
    if name and name not in PROFILES:
        raise SettingsError(f"AGENT_PROFILE: there is no profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name] if name else None


def _retries(settings: Settings) -> Retries:
    return Retries(settings.llm.attempts, pause=settings.llm.retry_seconds)
