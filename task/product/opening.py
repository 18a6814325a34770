"""Open what one process shares, and make its agent, from the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from task.approvals.approvals import ApprovalRules, Claims
from task.context.prompt import LiveContext
from task.conversation.state import StateSeal
from task.core_client.channel import Dialogs
from task.core_client.files import DialFiles
from task.errors import SettingsError
from task.llm.base import ModelOptions
from task.llm.dial import ModelListings
from task.llm.transport import READ_SECONDS, new_session
from task.loop import Limits
from task.memory.memories import Memories
from task.product import parts
from task.product.applications import Applications
from task.product.backends import BACKENDS, Backend
from task.product.names import Deployments
from task.product.profile import Profile, Services
from task.product.skills import operator_skills
from task.prompts import SYSTEM_PROMPT
from task.settings import Settings, process_environment
from task.settings.installation import STATE_KEY, installation_secret
from task.store.access import StoreAccess, StoreOptions
from task.telemetry import SHARED_METRICS
from task.telemetry.operations import Telemetry
from task.tools.base import BaseTool
from task.tools.deployment.deployment_tool import DeploymentAccess
from task.tools.mcp.hub import MCPHub, ServerSpec
from task.tools.offload import Offloader
from task.tools.workspace.tools import CallerWorkspaces

if TYPE_CHECKING:
    from task.telemetry.metrics import PrometheusMetrics
    from task.tools.mcp.oauth import UserSignIns


def check(settings: Settings) -> None:
    """Find before the first request what a wrong setting would break in it.

    Raises:
        SettingsError: the model's provider cannot be used, two MCP servers or APIs have one name, the secret of an API
            is missing, the policy cannot be meant, a workspace cannot be one, the address of Redis cannot be used, the
            packages for spans are missing, or the secret of the hidden state can neither be read nor made.
    """
    provider = BACKENDS[settings.backend]
    provider.check(settings)
    if settings.http.transcription and not provider.transcribes:
        raise SettingsError(f"http.transcription: {settings.backend} has no transcription; leave it out.")
    servers = [server.name for server in parts.mcp_specs(settings)]
    if settings.memory.server and settings.memory.server not in servers:
        raise SettingsError(f"AGENT_MEMORY__SERVER: there is no MCP server {settings.memory.server!r}. Name one.")
    parts.policy_of(settings)
    parts.check_workspaces(settings)
    if (redis := parts.redis_of(settings)) is not None:
        redis.check()
    seal_of(settings)
    telemetry_of(settings)


def seal_of(settings: Settings) -> StateSeal:
    """The seal of hidden state, by the secret of the settings or that of the installation.

    Raises:
        SettingsError: the secret of the installation can neither be read nor made.
    """
    secret = settings.state_secret
    found = secret.get_secret_value() if secret else installation_secret(settings.data_dir / STATE_KEY)
    return StateSeal(found.encode())


def opened(
    settings: Settings,
    *,
    tools: Sequence[BaseTool] | None = None,
    read_seconds: float = READ_SECONDS,
    metrics: PrometheusMetrics | None = None,
    seal: StateSeal | None = None,
) -> tuple[Services, Profile]:
    """What the process shares, and its agent, with the tools of the settings unless others are given.

    Called inside the event loop; connections and the store are opened on first use. A model may be silent for
    `read_seconds`; `seal` is that of the hidden state, where this process keeps any.

    Raises:
        SettingsError: the context's definition or a tool of the settings cannot be used, or two tools have one name.
    """
    redis, endpoint, context = parts.redis_of(settings), settings.dial_endpoint, None
    if (manager := parts.context_manager(settings)) is not None:
        manager.log_warnings()
        context = LiveContext(manager, settings.context.persona)
    telemetry = telemetry_of(settings, metrics)
    session = new_session(read_seconds, traced=telemetry.spans is not None)
    try:
        files, listings = DialFiles(endpoint, session=session), ModelListings(session, endpoint)
        fingerprint = seal.fingerprint if seal is not None else None
        store = StoreAccess(StoreOptions(**settings.store_options, redis=redis, fingerprint=fingerprint))
        backend = BACKENDS[settings.backend].open(settings, session, listings)
        own = parts.default_tools(settings, session, files, backend.chat_model, redis) if tools is None else tools
        servers, sign_in = parts.mcp_specs(settings), Dialogs(session, endpoint).sign_in
        users = _sign_ins(settings, servers, store, seal)
        mcp = MCPHub(servers, files, redis=redis, sign_in=sign_in, user_sign_ins=users)
        claims, chosen = Claims(files), settings.permissions
        times = (chosen.open_minutes * 60, chosen.grant_hours * 3600)
        policy = parts.policy_of(settings)
        rules = ApprovalRules(policy, claims, *times, clock=store.now)  # the clock that replicas share
    except BaseException:
        session.detach()  # it has no connections yet
        raise
    workspaces = CallerWorkspaces(partial(parts.workspace_of, settings), parts.command_limits(settings))
    key = settings.dial_api_key
    core_key = key.get_secret_value() if key else ""
    closes = (*(tool.close for tool in own if tools is None), mcp.close, workspaces.close, *backend.closes)
    apps = Applications(session, endpoint, parts.bounds_of(settings))
    named = Deployments(listings, endpoint, DeploymentAccess(session, files, settings.limits.max_upload_bytes))
    given = settings.memory
    memory = Memories(store, files, seal or seal_of(settings), given.tokens, given.server) if given.enabled else None
    services = Services(
        endpoint, session, files, listings, named, store, mcp, telemetry, apps, redis, core_key, closes, memory
    )
    profile = replace(_profile(settings, backend, files, own), context=context, rules=rules)
    return services, replace(profile, workspace_tools=workspaces.tools) if settings.coding.workspaces else profile


def _sign_ins(
    settings: Settings, servers: Sequence[ServerSpec], store: StoreAccess, seal: StateSeal | None
) -> UserSignIns | None:
    addresses = {server.name: server.url for server in servers if server.sign_in}
    if not addresses:
        return None
    from task.tools.mcp.oauth import UserSignIns  # its libraries take most of a second

    return UserSignIns(store, (seal or seal_of(settings)).secret, addresses)


def _profile(settings: Settings, backend: Backend, files: DialFiles, tools: Sequence[BaseTool]) -> Profile:
    limits, model = settings.limits, settings.llm
    top_k = {"top_k": model.top_k} if model.top_k is not None else {}
    return Profile(
        backend,
        settings.deployment_name,
        settings.system_prompt or SYSTEM_PROMPT,
        tools=tools,
        tool_share=settings.tool_search.share,
        limits=Limits(limits.steps, limits.tool_seconds, limits.run_seconds, limits.run_tokens),
        options=ModelOptions(settings.temperature, model.top_p, model.max_tokens, extra=top_k),
        offloader=Offloader(files, limits.offload_chars),
        history_tokens=settings.history.max_tokens,
        history_length=settings.history.max_length,
        link_hosts=tuple(settings.permissions.link_hosts),
        painter=settings.deployments.image,
        annotations=settings.annotations,
        timezone=settings.timezone,
        names=tuple(tool.deployment for tool in settings.deployments.tools if not tool.name),
        agents=settings.agents if settings.agents.enabled else None,
        skills=tuple(operator_skills(settings.skills.folders)),
    )


def opened_bare(endpoint: str) -> tuple[Services, Profile]:
    """The same with default settings before one DIAL Core."""
    return opened(Settings.model_validate({"dial_endpoint": endpoint}))


def telemetry_of(settings: Settings, metrics: PrometheusMetrics | None = None) -> Telemetry:
    """Spans where the settings name a collector; `metrics` are for a process that serves them.

    Raises:
        SettingsError: the packages for spans are not installed.
    """
    base, whole = settings.otel_exporter_otlp_endpoint, settings.otel_exporter_otlp_traces_endpoint
    if base is None and whole is None:
        return Telemetry(metrics)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from task.telemetry.otel import SEND_SECONDS, OtelSpans
    except ImportError as error:
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_ENDPOINT needs packages that are not installed: pip install "
            "'dial-general-purpose-agent[otel]'."
        ) from error
    given = process_environment().keys() & {"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"}
    seconds = None if given else SEND_SECONDS  # the library reads the standard variables where it gets none
    return Telemetry(metrics, OtelSpans(OTLPSpanExporter(whole or f"{base}/v1/traces", timeout=seconds)))


def metrics_of(settings: Settings) -> PrometheusMetrics | None:
    """The metrics of a serving process, which all processes share that have the same folder for them.

    Raises:
        SettingsError: there is no such folder.
    """
    if not settings.metrics.enabled:
        return None
    from task.telemetry.metrics import PrometheusMetrics

    shared = process_environment().get(SHARED_METRICS)
    if shared and not Path(shared).is_dir():
        raise SettingsError(f"{SHARED_METRICS}: {shared} is not a folder. Create it, or remove the variable.")
    rag, planner, coder = settings.rag, settings.planner_model, settings.coder_model
    models = (settings.deployment_name, planner, coder, rag.deployment, rag.reranker, *settings.prices)
    return PrometheusMetrics(set(filter(None, models)), Path(shared) if shared else None)
