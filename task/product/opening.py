"""Open what one process shares, and make its agent, from the settings."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from task.approvals.rules import ApprovalRules, CoreClaims
from task.context.prompt import LiveContext
from task.conversation.state import StateSeal
from task.core_client.files import DialFiles
from task.errors import SettingsError
from task.llm.base import ModelOptions
from task.llm.dial import ModelListings
from task.llm.transport import READ_SECONDS, new_session
from task.loop import Limits
from task.product.backends import BACKENDS, Backend
from task.product.observing import telemetry_of
from task.product.parts import (
    approval_rules_of,
    check_workspaces,
    command_limits,
    default_tools,
    live_context,
    mcp_specs,
    policy_of,
    redis_of,
    workspace_of,
)
from task.product.profile import Profile, no_tools
from task.product.services import Services
from task.product.workspaces import Workspaces
from task.prompts import SYSTEM_PROMPT
from task.settings import Settings
from task.settings.installation import STATE_KEY, installation_secret
from task.store.access import StoreAccess
from task.tools.base import BaseTool
from task.tools.mcp.hub import MCPHub
from task.tools.models import Caller
from task.tools.offload import Offloader

if TYPE_CHECKING:
    from task.telemetry.metrics import PrometheusMetrics


def check(settings: Settings) -> None:
    """Find before the first request what a wrong setting would break in it.

    Raises:
        SettingsError: the model's provider cannot be used, two MCP servers have one name, the policy cannot be meant, a
            workspace cannot be one, the address of Redis cannot be used, the packages for spans are missing, or the
            secret of the hidden state can neither be read nor made.
    """
    provider = BACKENDS[settings.backend]
    provider.check(settings)
    if settings.http.transcription and not provider.transcribes:
        raise SettingsError(f"http.transcription: {settings.backend} has no transcription; leave it out.")
    mcp_specs(settings)
    policy_of(settings)
    check_workspaces(settings)
    if (redis := redis_of(settings)) is not None:
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
    context, redis, endpoint = live_context(settings), redis_of(settings), settings.dial_endpoint
    telemetry = telemetry_of(settings, metrics)
    session = new_session(read_seconds, traced=telemetry.spans is not None)
    try:
        files, listings = DialFiles(endpoint, session=session), ModelListings(session, endpoint)
        store = StoreAccess(
            **settings.store_options, redis=redis, fingerprint=seal.fingerprint if seal is not None else None
        )
        backend = BACKENDS[settings.backend].open(settings, session, listings)
        own = default_tools(settings, session, files, backend.chat_model, redis) if tools is None else tools
        mcp = MCPHub(mcp_specs(settings), files, redis=redis)
        rules = approval_rules_of(settings, CoreClaims(session, endpoint), store.now)
    except BaseException:
        session.detach()  # it has no connections yet
        raise
    workspaces = Workspaces(lambda principal: workspace_of(settings, principal), command_limits(settings))
    key = settings.dial_api_key
    services = Services(
        endpoint,
        session,
        files,
        listings,
        store,
        mcp,
        telemetry,
        redis,
        key.get_secret_value() if key else "",
        (*(tool.close for tool in own if tools is None), mcp.close, workspaces.close, backend.close),
    )
    workspace_tools = workspaces.tools if settings.coding.workspaces else no_tools
    return services, _profile(settings, backend, context, own, workspace_tools, rules, files)


def _profile(
    settings: Settings,
    backend: Backend,
    context: LiveContext | None,
    tools: Sequence[BaseTool],
    workspace_tools: Callable[[Caller], Awaitable[list[BaseTool]]],
    rules: ApprovalRules,
    files: DialFiles,
) -> Profile:
    limits, model = settings.limits, settings.llm
    return Profile(
        backend,
        settings.deployment_name,
        settings.system_prompt or SYSTEM_PROMPT,
        context,
        tools=tools,
        workspace_tools=workspace_tools,
        rules=rules,
        limits=Limits(limits.steps, limits.tool_seconds, limits.run_seconds, limits.run_tokens),
        options=ModelOptions(
            settings.temperature,
            model.top_p,
            model.max_tokens,
            extra={"top_k": model.top_k} if model.top_k is not None else {},
        ),
        offloader=Offloader(files, limits.offload_chars),
        history_tokens=settings.history.max_tokens,
        history_length=settings.history.max_length,
        link_hosts=tuple(settings.permissions.link_hosts),
        painter=settings.deployments.image,
    )


def opened_bare(endpoint: str) -> tuple[Services, Profile]:
    """The same with default settings before one DIAL Core."""
    return opened(Settings.model_validate({"dial_endpoint": endpoint}))


def new_seal() -> StateSeal:
    """A seal that only this process knows."""
    return StateSeal(secrets.token_bytes(32))
