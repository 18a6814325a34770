"""The DIAL front door: GeneralPurposeAgentApplication."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlsplit

from aidial_sdk import HTTPException
from aidial_sdk.chat_completion import ChatCompletion, Request, Response
from aidial_sdk.deployment.configuration import ConfigurationRequest
from aidial_sdk.deployment.rate import RateRequest
from aidial_sdk.exceptions import InvalidRequestError

from task.agent import GeneralPurposeAgent
from task.blocking import close_all
from task.connection import Connection, OpenAIUpstream, open_connection
from task.context_setup import live_context
from task.dial.request import check_answerable, configuration_of, configuration_schema
from task.dial.traces import trace_start
from task.document_search import rag_tools
from task.documents.pool import ReaderLimits, ReaderPool
from task.errors import InvalidRequest, ProviderError, SettingsError, new_reference
from task.llm.base import ModelOptions
from task.llm.chat_request import PROFILES, Profile
from task.llm.transport import Retries
from task.loop import Limits
from task.permission_setup import permissions_of
from task.prompts import SYSTEM_PROMPT
from task.runs.traces import recorded
from task.settings import LimitSettings, McpServerSettings, Settings, load_settings
from task.settings.installation import installation_secret
from task.store.access import StoreAccess
from task.tools.base import BaseTool
from task.tools.calculator.calculator_tool import CalculatorTool
from task.tools.declare import load_tools
from task.tools.deployment.deployment_tool import DeploymentAccess, DeploymentSpec, DeploymentTool
from task.tools.deployment.image_generation_tool import ImageGenerationTool
from task.tools.files.file_content_extraction_tool import FileContentExtractionTool
from task.tools.mcp.hub import ServerSpec
from task.tools.offload import ReadFileLinesTool, SearchInFileTool
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool
from task.tools.toolbox import named

logger = logging.getLogger(__name__)


class GeneralPurposeAgentApplication(ChatCompletion):
    """Answers DIAL chat completions. Source: API reference, GeneralPurposeAgentApplication.

    `tools` is empty until the first request has made them. `store` keeps what runs did.
    """

    def __init__(self, *, settings: Settings | None = None) -> None:
        self.settings = settings or load_settings()
        self.tools: list[BaseTool] = []
        self._making = asyncio.Lock()
        self._connection: Connection | None = None
        self._context = live_context(self.settings)
        self.store = StoreAccess(**self.settings.store_options)

    async def chat_completion(self, request: Request, response: Response) -> None:
        """Check the request, then answer it into a single choice; every failure reaches the caller as a sentence."""
        try:
            check_answerable(request.messages, request.model_extra)
            configuration = configuration_of(request)
        except InvalidRequest as error:
            if request.stream and self.settings.errors_in_stream:
                response.create_single_choice().open()
            raise InvalidRequestError(str(error), display_message=str(error)) from error
        tools, connection = await self.ready_tools(), self.connection()
        prompt = await self.system_prompt()
        deployment = configuration.model or self.settings.deployment_name
        start = trace_start(request, configuration, deployment, content=self.settings.trace_content)
        with response.create_single_choice() as choice:
            try:
                async with recorded(self.store, start) as observer:
                    agent = GeneralPurposeAgent(
                        self.settings.dial_endpoint, prompt, tools, connection=connection, observer=observer
                    )
                    await agent.handle_request(deployment, choice, request, response)
            except ProviderError as error:
                raise _provider_failure(error, deployment) from error
            except HTTPException:
                raise
            except Exception as error:
                raise _unexpected() from error

    async def system_prompt(self) -> str:
        """What a conversation with the agent begins with."""
        prompt = self.settings.system_prompt or SYSTEM_PROMPT
        added = await self._context.prompt() if self._context is not None else ""
        return f"{prompt}\n\n{added}" if added else prompt

    async def rate_response(self, request: RateRequest) -> None:
        logger.info("answer %s was rated %s", request.response_id, "up" if request.rate else "down")

    async def configuration(self, request: ConfigurationRequest) -> dict[str, Any]:
        """What a person may choose for a conversation, as DIAL's JSON schema, with conversation starters."""
        models = await self.connection().listings.chat_models(request.api_key)
        default, image = self.settings.deployment_name, self.settings.deployments.image
        return configuration_schema([name for name in models if name != image or name == default], default)

    def connection(self) -> Connection:
        """The models and files all requests share; opened on first use, inside the event loop."""
        if self._connection is None:
            self._connection = connect(self.settings)
        return self._connection

    async def warm_up(self) -> None:
        """Load in a thread what the first requests would hold all others up for."""
        await self.connection().files.open()
        await asyncio.to_thread(import_module, "jsonschema")
        await self.store.get_if_available()

    async def close(self) -> None:
        await close_all(*(tool.close for tool in self.tools))
        if self._connection is not None:
            await self._connection.close()
        await self.store.close()

    async def ready_tools(self) -> list[BaseTool]:
        if not self.tools:
            async with self._making:
                if not self.tools:
                    self.tools = await self._create_tools()
        return self.tools

    async def offered_tools(self) -> list[BaseTool]:
        """The agent's own tools, and those of the servers that answer without a caller's key."""
        tools = await self.ready_tools()
        found = await self.connection().mcp.discover(None, named(tools))
        return [*tools, *found.tools]

    async def _create_tools(self) -> list[BaseTool]:
        return default_tools(self.settings, self.connection())

    async def _get_mcp_tools(self, url: str) -> list[BaseTool]:
        """The tools of the MCP server at `url`. Source: API reference, GeneralPurposeAgentApplication.

        Requests get the tools of all servers of the settings through the connection's hub, anew each time.

        Raises:
            ToolError: the server cannot be asked.
        """
        return await self.connection().mcp.tools_at(url)


def connect(settings: Settings) -> Connection:
    """The models and files that the settings name; must run in the event loop.

    Raises:
        SettingsError: the profile is unknown, or the secret of the hidden state can neither be read nor made.
    """
    limits = settings.limits
    secret = settings.state_secret
    sealing = secret.get_secret_value() if secret else installation_secret(settings.data_dir / "state.key")
    return open_connection(
        settings.dial_endpoint,
        secret=sealing.encode(),
        limits=Limits(limits.steps, limits.tool_seconds, limits.run_seconds, limits.run_tokens),
        offload_chars=limits.offload_chars,
        profile=_profile(settings.profile) if settings.profile else None,
        openai=_upstream(settings) if settings.backend == "openai" else None,
        mcp_servers=mcp_specs(settings),
        permissions=permissions_of(settings),
        link_hosts=settings.permissions.link_hosts,
        options=_model_options(settings),
        retries=Retries(settings.llm.attempts, pause=settings.llm.retry_seconds),
        request_tokens=settings.history.max_tokens,
    )


def _model_options(settings: Settings) -> ModelOptions:
    model = settings.llm
    extra = {"top_k": model.top_k} if model.top_k is not None else {}
    return ModelOptions(settings.temperature, model.top_p, model.max_tokens, extra=extra)


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


def _profile(name: str) -> Profile:
    if name not in PROFILES:
        raise SettingsError(f"AGENT_PROFILE: there is no profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]


def _upstream(settings: Settings) -> OpenAIUpstream:
    key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else ""
    return OpenAIUpstream(settings.openai_base_url or "https://api.openai.com/v1", key)


def default_tools(settings: Settings, connection: Connection | None = None) -> list[BaseTool]:
    """The tools of the product in their stable order, then the ones the settings name; without a connection only good
    for looking at.

    Raises:
        SettingsError: a tool of the settings cannot be loaded, or two tools have one name.
    """
    endpoint, files = settings.dial_endpoint, connection.files if connection else None
    readers = _readers(settings.limits)
    tools: list[BaseTool] = [
        FileContentExtractionTool(
            endpoint,
            files=files,
            max_size=settings.limits.max_download_bytes,
            readers=readers,
        ),
        *rag_tools(settings, connection, readers),
        CalculatorTool(),
        *_interpreter_tools(settings, connection),
        *_deployment_tools(settings, connection),
        *([ReadFileLinesTool(files), SearchInFileTool(files)] if files else []),
        *load_tools(settings.tool_paths),
    ]
    named(tools)
    return tools


def _interpreter_tools(settings: Settings, connection: Connection | None) -> list[PythonCodeInterpreterTool]:
    url = settings.pyinterpreter_mcp_url
    if url is None:
        return []
    files, most = connection.files if connection else None, settings.limits.max_upload_bytes
    token = own_token(settings, url)
    return [PythonCodeInterpreterTool(settings.dial_endpoint, url, token=token, files=files, max_bytes=most)]


def _deployment_tools(settings: Settings, connection: Connection | None) -> list[DeploymentTool]:
    endpoint, chosen, max_bytes = settings.dial_endpoint, settings.deployments, settings.limits.max_upload_bytes
    access = DeploymentAccess(connection.session, connection.files, max_bytes) if connection else DeploymentAccess()
    tools = [DeploymentTool(endpoint, DeploymentSpec(**tool.model_dump()), access=access) for tool in chosen.tools]
    if chosen.image == "off":
        return tools
    return [
        ImageGenerationTool(endpoint, deployment=chosen.image, seconds=chosen.image_seconds, access=access),
        *tools,
    ]


def _readers(limits: LimitSettings) -> ReaderPool:
    reading = ReaderLimits(seconds=limits.reader_seconds, memory_bytes=limits.reader_bytes)
    return ReaderPool(reading, processes=limits.reader_processes)


def _provider_failure(error: ProviderError, deployment: str) -> HTTPException:
    reference = new_reference()
    logger.error(
        "the model %s failed (reference %s, status %s, code %s): %s",
        deployment, reference, error.status_code, error.code, error,
    )  # fmt: skip
    shown = error.display_message or f"{_sentence(error, deployment)} (error reference: {reference})"
    # Core takes 429, 502, 503 and 504 for its own affair and throws the body away: the status is always 500.
    code = error.code or str(error.status_code or 500)
    return HTTPException(f"{deployment}: {error} (reference {reference})", 500, code=code, display_message=shown)


def _sentence(error: ProviderError, deployment: str) -> str:
    match error.status_code:
        case 401 | 403:
            return f"The model {deployment} refused the key. An operator has to look at the model's credentials."
        case 404:
            return f"There is no model {deployment}. Choose another one."
        case 429:
            return f"The model {deployment} is busy or over its limit. Try again in a minute."
        case 400 | 413 | 422:
            return f"The model {deployment} did not accept the conversation: {error}"
        case _:
            return f"The model {deployment} did not answer properly. Try again, or choose another model."


def _unexpected() -> HTTPException:
    reference = new_reference()
    logger.exception("a request failed unexpectedly (reference %s)", reference)
    shown = f"Something went wrong on our side. Try again (error reference: {reference})."
    return HTTPException(f"Unexpected failure (reference {reference})", 500, display_message=shown)
