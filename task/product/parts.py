"""Make the parts of a product from the settings: tools, MCP servers, policy and context."""

from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from task.context.dcm_manager import ContextOptions, DCMManager
from task.core_client.files import DialFiles
from task.documents.pool import ReaderLimits, ReaderPool
from task.embedding.embedder import Embedder, EmbedderOptions
from task.embedding.weights import PackagedModel, weights_folder
from task.errors import DCMInitError, InvalidRequest, SettingsError
from task.llm.base import ChatModel
from task.llm.embeddings import core_embeddings, openai_embeddings
from task.permissions.decisions import Effect
from task.permissions.matching import is_beginning
from task.permissions.names import own_name
from task.permissions.policy import DEFAULT_RULES, MEMORY_RULES, Policy, Rule, coding_policy
from task.product.applications import Bounds
from task.search.embeddings import Embeddings, RemoteEmbeddings
from task.search.readings import Readings
from task.search.shelf import DocumentCache
from task.search.vectors import MemoryVectors, PgVectors
from task.settings import McpServerSettings, Settings, process_environment
from task.settings.dial import ApplicationLimits
from task.settings.sections import OpenApiSettings
from task.shared.redis_store import RedisStore
from task.tools.base import BaseTool
from task.tools.calculator.calculator_tool import CalculatorTool
from task.tools.declare import load_tools
from task.tools.deployment.deployment_tool import DeploymentAccess, DeploymentSpec, DeploymentTool
from task.tools.deployment.image_generation_tool import ImageGenerationTool
from task.tools.dial_files.tools import dial_file_tools
from task.tools.files.file_content_extraction_tool import FileContentExtractionTool
from task.tools.mcp.connection import LocalProgram
from task.tools.mcp.hub import ServerSpec
from task.tools.mcp.mcp_tool_model import fit
from task.tools.models import Caller
from task.tools.offload import ReadFileLinesTool, SearchInFileTool
from task.tools.openapi.client import ApiClient
from task.tools.openapi.document import LARGEST_DOCUMENT, ApiSpec
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool
from task.tools.rag.rag_tool import RagOptions, RagTool
from task.tools.toolbox import named
from task.tools.workspace.bounds import PROGRAM, installation_of, refusal
from task.tools.workspace.commands import CommandLimits
from task.tools.workspace.launcher import launcher_command

_OF_SEARCH = {"k", "context_tokens", "whole_tokens", "seconds", "reranker", "cross_encoder", "max_chunks"}
# Not the address space: Node.js and Go reserve much more of it than they use.
_PROGRAM_LIMITS = {
    "memory": None,
    "data": 2 * 2**30,
    "run_memory": 2 * 2**30,
    "file_bytes": 2**30,
    "open_files": 1024,
    "processes": 256,
}


def default_tools(
    settings: Settings,
    session: aiohttp.ClientSession | None = None,
    files: DialFiles | None = None,
    chat_model: Callable[[str, Caller], ChatModel] | None = None,
    redis: RedisStore | None = None,
) -> list[BaseTool]:
    """The tools of the settings in their stable order; with the settings alone they can be listed, not run.

    Raises:
        SettingsError: a tool of the settings cannot be loaded, or two tools have one name.
    """
    endpoint, limits, rag, chosen = settings.dial_endpoint, settings.limits, settings.rag, settings.deployments
    reading = ReaderLimits(seconds=limits.reader_seconds, memory_bytes=limits.reader_bytes)
    pool = ReaderPool(reading, processes=limits.reader_processes)
    most, kept = limits.max_download_bytes, rag.cache_seconds
    readings = Readings(files or DialFiles(endpoint), pool, max_size=most, seconds=kept, store=redis)
    tools: list[BaseTool] = [FileContentExtractionTool(endpoint, readings=readings)]
    if rag.enabled:
        tools.append(_rag_tool(settings, readings, session, chat_model))
    tools.append(CalculatorTool())
    if url := settings.pyinterpreter_mcp_url:
        token, most, seconds = own_token(settings, url), limits.max_upload_bytes, settings.interpreter.seconds
        tools.append(
            PythonCodeInterpreterTool(endpoint, url, token=token, files=files, max_bytes=most, seconds=seconds)
        )
    access = DeploymentAccess(session, files, limits.max_upload_bytes) if session and files else DeploymentAccess()
    if chosen.image != "off":
        image, seconds = chosen.image, chosen.image_seconds
        tools.append(ImageGenerationTool(endpoint, deployment=image, seconds=seconds, access=access))
    described = (DeploymentSpec(**tool.model_dump()) for tool in chosen.tools if tool.name)
    tools += [DeploymentTool(endpoint, spec, access=access) for spec in described]
    if files:
        tools += [ReadFileLinesTool(files), SearchInFileTool(files)]
        tools += dial_file_tools(files) if settings.dial_files.enabled else []
    tools += load_tools(settings.tool_paths)
    named(tools)
    return tools


def bounds_of(settings: Settings) -> Bounds:
    """What the operator allows applications that users make of the agent."""
    chosen, limits = settings.applications, settings.limits
    most = {name: getattr(chosen.limits, name) or getattr(limits, name) for name in ApplicationLimits.model_fields}
    # The agent's own model is always allowed.
    models = None if chosen.models is None else [*dict.fromkeys([*chosen.models, settings.deployment_name])]
    return Bounds.model_validate({**dict(chosen), "models": models, "limits": most})


def packaged_model(settings: Settings) -> PackagedModel:
    """The embedding model that comes with the product, in the folder of the settings."""
    return PackagedModel(settings.rag.weights or weights_folder(settings.data_dir), process_environment())


def redis_of(settings: Settings) -> RedisStore | None:
    """The Redis that the settings name."""
    return RedisStore(settings.redis_url.get_secret_value()) if settings.redis_url is not None else None


def _rag_tool(
    settings: Settings,
    readings: Readings,
    session: aiohttp.ClientSession | None,
    chat_model: Callable[[str, Caller], ChatModel] | None,
) -> RagTool:
    rag = settings.rag
    url = rag.index_url.get_secret_value() if rag.index_url else ""
    vectors = PgVectors(url, readings, seconds=rag.cache_seconds) if url else MemoryVectors(readings)
    embedder: Embeddings
    if not rag.embeddings:
        packaged = packaged_model(settings)
        embedder = Embedder(
            EmbedderOptions(settings.embedding_model, rag.precision, rag.threads, packaged, rag.cross_encoder)
        )
    else:
        if "://" in rag.embeddings:
            key = rag.embeddings_key.get_secret_value() if rag.embeddings_key else ""
            endpoint = openai_embeddings(session, rag.embeddings, rag.embeddings_model, key)
        else:
            endpoint = core_embeddings(session, settings.dial_endpoint, rag.embeddings)
        embedder = RemoteEmbeddings(endpoint, batch=rag.embeddings_batch)
    return RagTool(
        settings.dial_endpoint,
        rag.deployment or settings.deployment_name,
        DocumentCache.create(rag.cache_seconds, max_bytes=rag.cache_bytes),
        readings=readings,
        embedder=embedder,
        vectors=vectors,
        model=chat_model,
        options=RagOptions(
            **rag.model_dump(include=_OF_SEARCH),
            counts_with="execute_code" if settings.pyinterpreter_mcp_url else "",
        ),
    )


def mcp_specs(settings: Settings) -> list[ServerSpec]:
    """The MCP servers of the settings, and their APIs in the place of servers.

    Raises:
        SettingsError: two of them have one name, or the secret of an API is not where the settings say.
    """
    url = settings.ddg_mcp_url
    search = [ServerSpec("search", url, token=own_token(settings, url), builtin=True)] if url else []
    servers = [*search, *(_mcp_server(server, settings.dial_endpoint) for server in settings.mcp_servers)]
    servers += [_api(api, settings) for api in settings.openapi]
    names = [server.name for server in servers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"AGENT_MCP_SERVERS: there are two servers called {twice[0]!r}; rename one of them")
    return servers


def own_token(settings: Settings, url: str) -> str | None:
    """The token of our own servers, unless `url` leads to another operator's."""
    host = urlsplit(url).hostname or ""
    near = host == "127.0.0.1" or ("." not in host and ":" not in host)
    return settings.mcp_token.get_secret_value() if settings.mcp_token and near else None


def _mcp_server(server: McpServerSettings, dial_endpoint: str) -> ServerSpec:
    tools = frozenset(server.tools) if server.tools is not None else None
    if server.command is not None:
        program = _program(server.command, server)
        return ServerSpec(server.name, f"program:{server.name}", tools=tools, seconds=server.seconds, program=program)
    url = server.url or ""
    toolset = url.removeprefix("toolset:") if url.startswith("toolset:") else None
    return ServerSpec(
        server.name,
        f"{dial_endpoint}/v1/toolset/{quote(toolset)}/mcp" if toolset else url,
        server.token.get_secret_value() if server.token else None,
        server.headers,
        tools,
        server.forward_key or toolset is not None,
        server.seconds,
        toolset=quote(toolset or ""),
        sign_in=server.sign_in,
    )


def _api(api: OpenApiSettings, settings: Settings) -> ServerSpec:
    secret, key = "", settings.dial_api_key.get_secret_value() if settings.dial_api_key else ""
    try:
        if api.secret:
            secret = Path(api.secret).read_text("utf-8") if "/" in api.secret else process_environment()[api.secret]
    except (OSError, ValueError, KeyError):  # whose texts may have the secret itself, by mistake
        raise SettingsError(f"AGENT_OPENAPI: the secret of {api.name!r} is not where `secret` says; set it") from None

    async def download(url: str) -> bytes:
        return (await DialFiles(settings.dial_endpoint).download(url, key, LARGEST_DOCUMENT)).content

    spec = ApiSpec(**api.model_dump(exclude={"secret"}), secret=secret.strip())
    return ServerSpec(api.name, api.document, seconds=api.seconds, client=ApiClient(spec, download))


def stranger(given: Mapping[str, Any]) -> ServerSpec:
    """A server that a client names for itself, with its `name`, `url` and `headers`.

    Its tools are never those that a rule is about, and none is known to only read.

    Raises:
        InvalidRequest: there can be no such server.
    """
    label = fit(f"client_{given['name']}")[:32]
    if not given["url"].startswith(("http://", "https://")):  # others are toolsets, with the caller's own key
        raise InvalidRequest(f"The MCP server {label} needs an address that begins with https:// or http://.")
    headers = {item["name"]: item["value"] for item in given["headers"]}
    return ServerSpec(label, given["url"], headers=headers, called=f"client/{given['name']}")


def _program(command: str, server: McpServerSettings) -> LocalProgram:
    environment, path = process_environment(), Path(command).expanduser()
    program = Path(which(path, path=environment.get("PATH")) or Path("/", path))  # never one of the working directory
    given = {name: value.get_secret_value() for name, value in server.env.items()}
    read, write = ([str(path.absolute()) for path in paths] for paths in (server.read, server.write))
    policy = {
        "read_write": write,
        "read_only": [*installation_of(program, environment), *read],
        "environment": {"PATH": f"{program.parent}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **given},
        "network": server.hosts or "none",
        "limits": _PROGRAM_LIMITS,
        "die_with_parent": True,
    }
    secrets = tuple(filter(None, given.values()))
    return LocalProgram((str(program), *server.args), tuple(launcher_command()), policy, secrets)


def policy_of(settings: Settings) -> Policy:
    """The rules of the settings, then the product's own, within the settings' lists of tools and commands.

    Raises:
        SettingsError: no command begins like one of the settings says.
    """
    chosen, bash = settings.permissions, settings.teps.bash
    rules = [
        Rule(
            **rule.model_dump(exclude={"effects"}),
            effects=frozenset(map(Effect, rule.effects)) if rule.effects is not None else None,
        )
        for rule in chosen.rules
    ]
    rules += DEFAULT_RULES if chosen.default_rules else ()
    rules += MEMORY_RULES if settings.memory.enabled else ()
    rules += [Rule("deny", command=tuple(bash.blocked_commands))] if bash.blocked_commands else ()
    for name, beginnings in (
        ("AGENT_PERMISSIONS__RULES", [text for rule in chosen.rules for text in rule.command]),
        ("AGENT_TEPS__BASH__BLOCKED_COMMANDS", bash.blocked_commands),
        ("AGENT_TEPS__BASH__ALLOWED_COMMANDS", bash.allowed_commands or ()),
    ):
        if wrong := next((text for text in beginnings if not is_beginning(text)), None):
            fix = "List each command on its own, without quotes, pipes, variables and redirections."
            raise SettingsError(f"{name}: no command begins with {wrong[:80]!r}. {fix}")
    given = (chosen.tools, settings.teps.allowed_tools)
    lists = [frozenset(map(own_name, names)) for names in given if names is not None]
    commands = None if bash.allowed_commands is None else tuple(bash.allowed_commands)
    policy = Policy(tuple(rules), lists[0].intersection(*lists) if lists else None, commands)
    return coding_policy(policy) if settings.coding.apply and chosen.default_rules else policy


def check_workspaces(settings: Settings) -> None:
    """Find a workspace of the settings that cannot be one.

    Raises:
        SettingsError: it is no folder, wider than a project, or where the product keeps its own files.
    """
    own = (settings.data_dir, settings.cache_dir, *settings.files, *PROGRAM)
    for item in settings.coding.workspaces:
        if reason := refusal(item.path, own):
            raise SettingsError(f"AGENT_CODING__WORKSPACES: {reason}. Name a project's folder.")


def command_limits(settings: Settings) -> CommandLimits:
    """The limits of one command of a workspace."""
    return CommandLimits(settings.coding.command_seconds, settings.coding.command_memory_mib * 2**20)


def workspace_of(settings: Settings, principal: str) -> Path | None:
    """The folder in which this principal, as a door names it, gets the workspace tools; None: none."""
    owner = principal.removeprefix("http:").removeprefix("dial:")
    return next((item.path for item in settings.coding.workspaces if owner in item.owners), None)


def context_manager(settings: Settings) -> DCMManager | None:
    """The context that the settings name, read; None where they name none.

    Raises:
        SettingsError: the definition cannot be read, or it has no such persona.
    """
    chosen = settings.context
    if chosen.definition_path is None:
        return None
    options = ContextOptions(**chosen.model_dump(exclude={"definition_path", "persona"}))
    manager = DCMManager(str(chosen.definition_path), options=options)
    try:
        manager.initialize()
    except DCMInitError as error:
        raise SettingsError(f"AGENT_CONTEXT__DEFINITION_PATH: {error} Correct the path, or remove it.") from error
    if chosen.persona and manager.get_persona(chosen.persona) is None:
        known = ", ".join(manager.persona_ids()) or "none"
        raise SettingsError(f"AGENT_CONTEXT__PERSONA: there is no persona {chosen.persona!r}. There are: {known}.")
    return manager
