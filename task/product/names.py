"""Tools by name alone: what Core says of a deployment, an application or a toolset makes it a tool of one user's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from task.core_client.deployments import Deployments, Described, is_users
from task.output.sinks import ChoiceSink
from task.permissions.names import ALIASES
from task.tools.base import BaseTool
from task.tools.deployment.deployment_tool import OWN_ARGUMENTS, DeploymentAccess, DeploymentSpec, DeploymentTool
from task.tools.mcp.hub import Discovered, ServerSpec
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.mcp_tool_model import fit
from task.tools.mcp.results import Fault, MCPFailure
from task.tools.models import Caller, Effect

if TYPE_CHECKING:
    from task.product.profile import Profile, Services

logger = logging.getLogger(__name__)

MOST_NAMED = 50
SECONDS = 300.0
UNKNOWN = (
    "DIAL Core does not say which deployments this user may use. Those that may change something are left out of this "
    "answer; tell the user to try again later."
)


async def named_tools(
    services: Services,
    profile: Profile,
    caller: Caller | None,
    taken: Collection[str],
    choice: ChoiceSink | None = None,
) -> Discovered:
    """The tools of the servers of the settings and those that the profile names, under names that are not `taken`.

    Only a caller has the latter: they are what Core lets the caller use now. While it does not say so, those that may
    write are left out.
    """
    if caller is None:
        return await services.mcp.discover(caller, taken, choice)
    names = [name for name in dict.fromkeys(profile.names) if name != profile.application][:MOST_NAMED]
    allowed = await services.deployments.allowed(caller)
    found = await _described(services.deployments, names, allowed, caller)
    servers = [_server(services.endpoint, item) for item in found if item.mcp]
    made = [] if allowed is None else list(_tools(services, [item for item in found if not item.mcp], taken))
    listed = await services.mcp.discover(caller, {*taken, *(tool.name for tool in made)}, choice, servers)
    if allowed is not None:
        return replace(listed, tools=(*made, *listed.tools))
    logger.warning("DIAL Core does not say what a user may use: %d tools by name at most read", len(names))
    named = {server.name for server in servers}
    return Discovered(
        tuple(tool for tool in listed.tools if not _may_write(tool, named)),
        (*listed.issues, MCPFailure(Fault.UNAVAILABLE, "DIAL Core", UNKNOWN)),
    )


async def _described(
    deployments: Deployments, names: Sequence[str], allowed: Mapping[str, str] | None, caller: Caller
) -> list[Described]:
    kinds = allowed or {}
    usable = [name for name in names if allowed is None or name in kinds or is_users(name)]
    found = await asyncio.gather(*(deployments.described(name, caller, kinds.get(name, "")) for name in usable))
    return [item for item in found if item is not None]


def _tools(services: Services, found: Sequence[Described], taken: Collection[str]) -> Iterator[BaseTool]:
    access = DeploymentAccess(services.session, services.files, services.deployments.max_bytes)
    names = {*taken, *ALIASES}  # a rule about a tool of ours never means another's
    for item in found:
        name = _model_name(item)
        name = fit(f"{item.kind}_{name}", digest=True) if name in names else name
        names.add(name)
        arguments = {key: shape for key, shape in item.arguments.items() if key not in OWN_ARGUMENTS}
        spec = DeploymentSpec(
            name,
            f"Asks the {item.kind} {item.name} of DIAL. Its makers say: {item.description}",
            item.name,
            arguments=arguments,
            required=tuple(key for key in item.required if key in arguments),
            attachments=item.attachments,
            seconds=SECONDS,
            by_name=True,
        )
        yield DeploymentTool(services.endpoint, spec, access=access)


def _server(endpoint: str, item: Described) -> ServerSpec:
    toolset = item.name if item.kind == "toolset" else ""
    url = f"{endpoint}/v1/{'toolset' if toolset else 'deployments'}/{quote(item.name)}/mcp"
    return ServerSpec(_model_name(item), url, forward_key=True, toolset=toolset, called=item.name)


def _model_name(item: Described) -> str:
    # With its kind in front and a digest behind, a name that a user chose is not one that a rule of the operator means.
    if not is_users(item.name):
        return fit(item.name)
    digest = sha256(item.name.encode()).hexdigest()[:8]
    return fit(f"{item.kind}_{unquote(item.name.rpartition('/')[2])[:20]}_{digest}")


def _may_write(tool: BaseTool, servers: Collection[str]) -> bool:
    return isinstance(tool, MCPTool) and tool.client.name in servers and Effect.WRITE in tool.effects
