"""Tools by name alone: what Core says of a deployment, an application or a toolset makes it a tool of one user's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from task.core_client.deployments import Described
from task.output.sinks import ChoiceSink
from task.permissions.names import ALIASES
from task.tools.base import BaseTool
from task.tools.deployment.deployment_tool import OWN_ARGUMENTS, DeploymentAccess, DeploymentSpec, DeploymentTool
from task.tools.mcp.hub import Discovered, ServerSpec
from task.tools.mcp.mcp_tool_model import fit
from task.tools.mcp.results import Fault, MCPFailure
from task.tools.models import Caller

if TYPE_CHECKING:
    from task.product.profile import Profile, Services

MOST_NAMED, SECONDS = 50, 300.0
_ARGUMENT = re.compile(r"[a-zA-Z0-9_-]{1,64}")
UNKNOWN = MCPFailure(
    Fault.UNAVAILABLE,
    "DIAL Core",
    "It does not say which deployments this user may use. They are left out; tell the user to try again later.",
)


async def named_tools(
    services: Services,
    profile: Profile,
    caller: Caller | None,
    taken: Collection[str],
    choice: ChoiceSink | None = None,
) -> Discovered:
    """The tools of the servers of the settings, and those that the profile names, under names that are not `taken`.

    Only a caller has the latter: they are what Core lets the caller use now. While it does not say so, there are none.
    """
    mcp, deployments = services.mcp, services.deployments
    allowed = await deployments.allowed(caller) if caller is not None else None
    if caller is None or allowed is None:
        known = await mcp.discover(caller, taken, choice)
        return known if caller is None else replace(known, issues=(*known.issues, UNKNOWN))
    # Ids of users' applications are percent-encoded; whoever builds an address encodes a name once. No list has them:
    # what Core says of the one decides.
    wanted = [name for name in dict.fromkeys(map(unquote, profile.names)) if name in allowed or "/" in name]
    names = [name for name in wanted if name != unquote(profile.application)][:MOST_NAMED]
    asked = [deployments.described(name, caller, allowed.get(name, "")) for name in names]
    servers, tools, used = list[ServerSpec](), list[BaseTool](), {*taken, *ALIASES}
    for item in filter(None, await asyncio.gather(*asked)):
        # With its kind in front and a digest behind, a name that a user chose is not one that an operator's rule means.
        digest, toolset = sha256(item.name.encode()).hexdigest()[:8], item.name if item.kind == "toolset" else ""
        name = f"{item.kind}_{item.name.rpartition('/')[2][:20]}_{digest}" if "/" in item.name else item.name
        if item.mcp:
            url = f"{services.endpoint}/v1/{'toolset' if toolset else 'deployments'}/{quote(item.name)}/mcp"
            servers.append(ServerSpec(fit(name), url, forward_key=True, toolset=toolset, called=item.name))
            continue
        name = fit(f"{item.kind}_{name}", digest=True) if fit(name) in used else fit(name)
        if (item, name) not in deployments.made:  # a tool keeps its schema
            access = DeploymentAccess(services.session, services.files, deployments.max_bytes)
            deployments.made[item, name] = DeploymentTool(services.endpoint, _spec(item, name), access=access)
        tools.append(deployments.made[item, name])
        used.add(name)
    found = await mcp.discover(caller, used, choice, servers)
    return replace(found, tools=(*tools, *found.tools))


def _spec(item: Described, name: str) -> DeploymentSpec:
    given = item.schema.get("properties", {}).items()
    arguments = {key: shape for key, shape in given if _ARGUMENT.fullmatch(key) and key not in OWN_ARGUMENTS}
    return DeploymentSpec(
        name,
        f"Asks the {item.kind} {item.name} of DIAL. Its makers say: {item.text}",
        item.name,
        arguments=arguments,
        required=tuple(key for key in item.schema.get("required", ()) if key in arguments),
        attachments=item.types,
        seconds=SECONDS,
        by_name=True,
    )
