"""Tools by name alone: what Core says of a deployment, an application or a toolset makes it a tool of one user's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from cachetools import TLRUCache, TTLCache
from pydantic import JsonValue

from task.core_client.files import is_path
from task.llm.dial import KEPT_SECONDS, MISSED_SECONDS, ModelListings
from task.tools.deployment.deployment_tool import OWN_ARGUMENTS, DeploymentAccess, DeploymentSpec, DeploymentTool
from task.tools.find_tools import RESERVED
from task.tools.mcp.hub import LONGEST_NAMED_SCHEMA, Discovered, ServerSpec
from task.tools.mcp.mcp_tool_model import MCPToolModel, fit, usable
from task.tools.mcp.results import Fault, MCPFailure
from task.tools.models import Caller

if TYPE_CHECKING:
    from task.product.profile import Profile, Services

KINDS = ("model", "application", "toolset")
KEPT, MOST_NAMED, MOST_TYPES, LONGEST_TEXT, SECONDS = 1_000, 50, 50, 4_000, 300.0
MOST_BYTES = 2**17  # that users wrote about one: to read more would hold the event loop
_TEXTS = ("display_name", "description")
_ARGUMENT = re.compile(r"[a-zA-Z0-9_-]{1,64}")
UNKNOWN = MCPFailure(
    Fault.UNAVAILABLE,
    "DIAL Core",
    "It does not say which deployments this user may use. They are left out; tell the user to try again later.",
)


class Deployments:
    """Asks Core with the caller's key; what it says to a user in an application is kept for that user there only.

    `access` is the tools'.
    """

    def __init__(self, core: ModelListings, endpoint: str, access: DeploymentAccess) -> None:
        self._core, self._endpoint, self._access = core, endpoint, access
        self._names: TTLCache[tuple[str, ...], Mapping[str, str]] = TTLCache(KEPT, MISSED_SECONDS)
        self._kept: TLRUCache[tuple[str, ...], DeploymentTool | ServerSpec | None] = TLRUCache(
            KEPT, lambda _, made, now: now + (MISSED_SECONDS if made is None else KEPT_SECONDS)
        )

    async def named(
        self, names: Sequence[str], caller: Caller, taken: Collection[str] = ()
    ) -> Mapping[str, DeploymentTool | ServerSpec] | None:
        """What Core lets the caller use now of these names, as tools that are not called as those that are `taken` are,
        or as servers of tools; None while it does not say."""
        who = (await caller.principal(), caller.application)
        if (allowed := await self._allowed(who, caller.api_key)) is None:
            return None
        used, places = {*taken, *RESERVED}, dict[tuple[str, ...], str]()
        # Ids of users' applications are percent-encoded; an address has a name encoded once. No list has
        # them: what Core says of the one decides.
        for name in dict.fromkeys(map(unquote, names)):
            kind = name.partition("s/")[0] if "/" in name else allowed.get(name)
            if kind not in KINDS or not is_path(name) or len(places) == MOST_NAMED:
                continue
            label = fit(name)
            if "/" in name or label in used:
                # So a name that a user chose is not one that an operator's rule means.
                label = fit(f"{kind}_{name.rpartition('/')[2][:20]}_{sha256(name.encode()).hexdigest()[:8]}")
            used.add(label)
            places[*who, name, label] = kind
        asked = {place: kind for place, kind in places.items() if place not in self._kept}
        found = [self._made(place[2], kind, place[3], caller.api_key) for place, kind in asked.items()]
        self._kept.update(zip(asked, await asyncio.gather(*found), strict=True))
        return {place[2]: made for place in places if (made := self._kept.get(place)) is not None}

    async def _allowed(self, who: tuple[str, ...], api_key: str) -> Mapping[str, str] | None:
        # The names that the caller may use, with their kinds, without users' own: one request a minute. An older Core
        # is asked for its listings. What has changed since is refused by Core when it is called.
        if (known := self._names.get(who)) is not None:
            return known
        found: JsonValue = await self._core.get(f"/v1/deployment-names?type={','.join(KINDS)}", api_key)
        if not isinstance(found, list):
            listings = (self._core.get(f"/openai/{kind}s", api_key) for kind in KINDS)
            pages: list[JsonValue] = await asyncio.gather(*listings)
            if not all(isinstance(page, dict) for page in pages[:2]):  # older Cores have no toolsets
                return None
            lists = [page.get("data") for page in pages if isinstance(page, dict)]
            found = [item for items in lists if isinstance(items, list) for item in items]
        items = (item for item in found if isinstance(item, dict))
        self._names[who] = known = {unquote(str(item.get("id"))): str(item.get("object")) for item in items}
        return known

    async def _made(self, name: str, kind: str, label: str, api_key: str) -> DeploymentTool | ServerSpec | None:
        found: JsonValue = await self._core.get(f"/openai/{kind}s/{quote(name)}", api_key, 4 * MOST_BYTES)
        if not isinstance(found, dict):
            return None
        features = features if isinstance(features := found.get("features"), dict) else {}
        if kind == "toolset" or features.get("mcp") is True:
            toolset = name if kind == "toolset" else ""
            url = f"{self._endpoint}/v1/{'toolset' if toolset else 'deployments'}/{quote(name)}/mcp"
            return ServerSpec(label, url, forward_key=True, toolset=toolset, called=name)
        schema: JsonValue = None
        if features.get("configuration") is True:
            schema = await self._core.get(f"/v1/deployments/{quote(name)}/configuration", api_key, MOST_BYTES)
        parameters = _parameters(schema if isinstance(schema, dict) else {}, label)
        given = parameters["properties"].items()
        arguments = {key: shape for key, shape in given if _ARGUMENT.fullmatch(key) and key not in OWN_ARGUMENTS}
        texts = [text[:LONGEST_TEXT] for key in _TEXTS if isinstance(text := found.get(key), str)]
        types = types if isinstance(types := found.get("input_attachment_types"), list) else ()
        spec = DeploymentSpec(
            label,
            f"Asks the {kind} {name} of DIAL. Its makers say: {' '.join(': '.join(texts).split())}",
            name,
            arguments=arguments,
            required=tuple(key for key in parameters.get("required", ()) if key in arguments),
            attachments=tuple(item[:100] for item in types[:MOST_TYPES] if isinstance(item, str)),
            seconds=SECONDS,
            by_name=True,
        )
        return DeploymentTool(self._endpoint, spec, access=self._access)


def _parameters(schema: dict[str, JsonValue], label: str) -> dict[str, Any]:
    # Without the buttons, which are for users; empty where it is too large.
    given = schema.get("properties")
    shapes = given.items() if isinstance(given, dict) else ()
    shown = {key: shape for key, shape in shapes if not isinstance(shape, dict) or "dial:widget" not in shape}
    plain = usable(MCPToolModel(label, "", {**schema, "properties": shown}), LONGEST_NAMED_SCHEMA)
    return plain.parameters if plain is not None else {"properties": {}}


async def named_tools(
    services: Services, profile: Profile, caller: Caller | None, taken: Collection[str]
) -> Discovered:
    """The tools of the servers of the settings and of a client, and those that the profile names, under names that are
    not `taken`.

    Only a caller has the last: they are what Core lets the caller use now. While it does not say so, there are none.
    """
    if not profile.names or caller is None:
        return await services.mcp.discover(caller, taken, profile.servers)
    made = await services.deployments.named(profile.names, caller, taken)
    tools = [item for item in (made or {}).values() if isinstance(item, DeploymentTool)]
    servers = [*profile.servers, *(item for item in (made or {}).values() if isinstance(item, ServerSpec))]
    found = await services.mcp.discover(caller, {*taken, *(tool.name for tool in tools)}, servers)
    missing = (UNKNOWN,) if made is None else ()
    return replace(found, tools=(*tools, *found.tools), issues=(*found.issues, *missing))
