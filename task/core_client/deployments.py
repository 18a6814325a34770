"""What DIAL Core knows of the deployments, applications and toolsets that a user may call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, cast
from urllib.parse import quote, unquote

import orjson
from cachetools import LRUCache, TLRUCache

from task.core_client.files import is_path
from task.core_client.models import Caller
from task.errors import ToolError
from task.llm.dial import ModelListings
from task.llm.schemas import plain_schema

KINDS = ("model", "application", "toolset")
KEPT, KEPT_SECONDS, MISSED_SECONDS = 1_000, 300, 60
LONGEST_TEXT, LONGEST_SCHEMA, MOST_TYPES = 4_000, 20_000, 50
CALL_PATH = "x-dial-agent-call-path"  # as servers read names of headers
DEEPEST = 5  # calls inside each other


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """A deployment as Core lists it to one user: what its makers say of it, the types of files that it takes, and the
    schema of its configuration, without buttons. `mcp`: its tools are those of an MCP server."""

    name: str
    kind: str
    text: str
    types: tuple[str, ...]
    mcp: bool
    schema: Mapping[str, Any]


class Deployments:
    """Asks Core with the caller's key; what it says to one user is kept for that user only.

    `max_bytes` is the largest file that is accepted from a deployment's answer; `made` are tools by what made them.
    """

    def __init__(self, core: ModelListings, max_bytes: int) -> None:
        self.max_bytes, self._core = max_bytes, core
        self.made: LRUCache[tuple[Described, str], Any] = LRUCache(KEPT)
        self._kept: TLRUCache[tuple[str, str], Any] = TLRUCache(
            KEPT, lambda _, found, now: now + (KEPT_SECONDS if isinstance(found, Described) else MISSED_SECONDS)
        )

    async def allowed(self, caller: Caller) -> Mapping[str, str] | None:
        """The names that the caller may use now, with their kinds, without users' own; None where Core does not say.

        One request a minute; a Core that does not know it is asked for its listings. What has changed since is refused
        by Core when it is called.
        """
        place = (await caller.principal(), "")
        if (known := self._kept.get(place)) is not None:
            return cast("Mapping[str, str]", known)
        found = await self._core.get(f"/v1/deployment-names?type={','.join(KINDS)}", caller.api_key)
        if not isinstance(found, list):
            pages = await asyncio.gather(*(self._core.get(f"/openai/{kind}s", caller.api_key) for kind in KINDS))
            models, applications, toolsets = (page.get("data") if isinstance(page, dict) else None for page in pages)
            if not isinstance(models, list) or not isinstance(applications, list):
                return None
            found = [*models, *applications, *(toolsets or ())]  # older Cores have no toolsets
        items = [cast("dict[str, Any]", item) for item in found if isinstance(item, dict)]
        self._kept[place] = known = {unquote(str(item.get("id"))): str(item.get("object")) for item in items}
        return known

    async def described(self, name: str, caller: Caller, kind: str = "") -> Described | None:
        """What Core says of the deployment to this caller; None where there is none for the caller.

        A user's own has its kind in its name, `applications/{bucket}/{path}`; others are looked for unless it is given.
        """
        place = (await caller.principal(), name)
        if place not in self._kept:
            kinds = [known for known in KINDS if known == kind or name.startswith(f"{known}s/")] or KINDS
            self._kept[place] = await self._described(name, caller.api_key, kinds) if is_path(name) else None
        return self._kept.get(place)

    async def _described(self, name: str, api_key: str, kinds: Sequence[str]) -> Described | None:
        for kind in kinds:
            found: Any = await self._core.get(f"/openai/{kind}s/{quote(name)}", api_key)
            if not isinstance(found, dict):
                continue
            features = found["features"] if isinstance(found.get("features"), dict) else {}
            given = [found.get(key) for key in ("display_name", "description")]
            texts = [text[:LONGEST_TEXT] for text in given if isinstance(text, str)]
            types = found.get("input_attachment_types")
            listed = types[:MOST_TYPES] if isinstance(types, list) else ()
            taken = tuple(item[:100] for item in listed if isinstance(item, str))
            schema, mcp = {}, kind == "toolset" or features.get("mcp") is True
            if features.get("configuration") is True and not mcp:
                schema = _plain(await self._core.get(f"/v1/deployments/{quote(name)}/configuration", api_key))
            return Described(name, kind, " ".join(": ".join(texts).split()), taken, mcp, schema)
        return None


def _plain(schema: Any) -> dict[str, Any]:
    # Without its buttons, which are for users; empty where it is not of an object, or too large.
    given: Any = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(given, dict) or json_size(schema) > LONGEST_SCHEMA:
        return {}
    shapes = {name: shape for name, shape in given.items() if not isinstance(shape, dict) or "dial:widget" not in shape}
    return plain_schema({**schema, "properties": shapes})


def json_size(value: Any) -> float:
    """The bytes of a value as JSON; infinitely many where it is nested too deeply to be written."""
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return inf


def calling(caller: Caller, name: str) -> Caller:
    """The caller as the deployment `name` shall see it: with the path of the calls that led there.

    Raises:
        ToolError: the deployment is on that path already, or the path is too long.
    """
    path = [unquote(part) for part in caller.headers.get(CALL_PATH, "").split(",") if part]
    if name in path:
        raise ToolError(f"{name} is not called: it is answering this request already, and would call itself for ever.")
    if len(path) >= DEEPEST:
        raise ToolError(f"{name} is not called: {DEEPEST} deployments are calling each other already. Answer without.")
    longer = ",".join(quote(part, safe="") for part in (*path, name))
    return replace(caller, headers={**caller.headers, CALL_PATH: longer})
