"""What DIAL Core knows of the deployments, applications and toolsets that a user may call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote

import orjson
from cachetools import TLRUCache

from task.core_client.models import Caller
from task.errors import ToolError
from task.llm.dial import core_headers
from task.llm.schemas import plain_schema
from task.llm.transport import listing

if TYPE_CHECKING:
    import aiohttp

KINDS = ("model", "application", "toolset")
KEPT, KEPT_SECONDS, MISSED_SECONDS = 1_000, 300, 60
SECONDS = 5.0  # for an answer of Core's
LONGEST_NAME, MOST_NAMES, MOST_BYTES = 300, 20_000, 2**22
_LONGEST_TEXT, _LONGEST_SCHEMA, _MOST_TYPES = 4_000, 20_000, 50
_CHATS = {"chat_completion": True}  # what says nothing of it
_ARGUMENT = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CALL_PATH = "X-DIAL-AGENT-CALL-PATH"
DEEPEST = 5  # calls inside each other


@dataclass(frozen=True, slots=True)
class Described:
    """A deployment as Core describes it to one user; its texts come from outside.

    `attachments` are the types of files that it takes, `arguments` the JSON Schemas of its configuration, of which some
    are `required`. `mcp`: it is called by MCP.
    """

    name: str
    kind: str
    description: str
    attachments: tuple[str, ...] = ()
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    required: tuple[str, ...] = ()
    mcp: bool = False


class Deployments:
    """Asks the Core at `endpoint` with the caller's key; what it says to one user is kept for that user only.

    `max_bytes` is the largest file that is accepted from a deployment's answer.
    """

    def __init__(self, session: aiohttp.ClientSession, endpoint: str, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._session, self._endpoint = session, endpoint.rstrip("/")
        self._kept: TLRUCache[tuple[str, str], Any] = TLRUCache(
            KEPT, lambda _, found, now: now + (KEPT_SECONDS if isinstance(found, Described) else MISSED_SECONDS)
        )

    async def allowed(self, caller: Caller) -> Mapping[str, str] | None:
        """The names that the caller may use now, with their kinds, without users' own; None where Core does not say.

        One request; a Core that does not know it is asked for its listings, which are kept for a minute.
        """
        place = (await caller.principal(), "")
        if (listed := self._kept.get(place)) is not None:
            return cast("Mapping[str, str]", listed)
        found = await self._get(f"/v1/deployment-names?type={','.join(KINDS)}", caller)
        if isinstance(found, list):
            return _names(found)
        pages = await asyncio.gather(*(self._get(f"/openai/{kind}s", caller) for kind in KINDS))
        lists = [page.get("data") if isinstance(page, dict) else None for page in pages]
        if not all(isinstance(items, list) for items in lists[:2]):  # older Cores have no toolsets
            return None
        self._kept[place] = {name: kind for items in reversed(lists) for name, kind in _names(items or []).items()}
        return self._kept[place]

    async def described(self, name: str, caller: Caller, kind: str = "") -> Described | None:
        """What Core says of the deployment to this caller; None where there is none for the caller.

        A user's own has its kind in its name, `applications/{bucket}/{path}`; for others it is asked for unless given.
        """
        place = (await caller.principal(), name)
        if place not in self._kept:
            self._kept[place] = await self._described(name, caller, kind) or ""
        return self._kept.get(place) or None

    async def _described(self, name: str, caller: Caller, kind: str) -> Described | None:
        if not _is_name(name):
            return None
        known = name.partition("/")[0].removesuffix("s") if is_users(name) else kind
        for kind in (known,) if known in KINDS else KINDS:
            found = await self._get(f"/openai/{kind}s/{quote(name)}", caller)
            if isinstance(found, dict) and (found.get("capabilities") or _CHATS).get("chat_completion") is not False:
                break
        else:
            return None
        features = found.get("features")
        offered = cast("dict[str, Any]", features) if isinstance(features, dict) else {}
        title, text = (" ".join(str(found.get(key) or "").split()) for key in ("display_name", "description"))
        types = found.get("input_attachment_types")
        described = Described(
            name,
            kind,
            ": ".join(filter(None, (title or name, text)))[:_LONGEST_TEXT],
            tuple(str(item)[:100] for item in types[:_MOST_TYPES]) if isinstance(types, list) else (),
            mcp=kind == "toolset" or offered.get("mcp") is True,
        )
        if described.mcp or offered.get("configuration") is not True:
            return described
        return _configured(described, await self._get(f"/v1/deployments/{quote(name)}/configuration", caller))

    async def _get(self, path: str, caller: Caller) -> Any:
        url = f"{self._endpoint}{path}"
        return await listing(self._session, url, core_headers(caller.api_key), SECONDS, MOST_BYTES)


def is_users(name: str) -> bool:
    """Whether it is the name of a user's own: of those what Core says of the one decides, and no list has them."""
    return name.startswith(("applications/", "toolsets/"))


def _names(items: Sequence[Any]) -> dict[str, str]:
    found = [cast("dict[str, Any]", item) for item in items[:MOST_NAMES] if isinstance(item, dict)]
    return {unquote(str(item.get("id"))): str(item.get("object")) for item in found}


def _is_name(name: str) -> bool:
    # Neither Core nor anything on the way may take it for another path.
    parts = [unquote(part) for part in name.split("/")]
    fits = (part.strip() == part and part.isprintable() and not {"/", "\\"}.intersection(part) for part in parts)
    return len(name) <= LONGEST_NAME and all(fits) and {"", ".", ".."}.isdisjoint(parts)


def _configured(described: Described, schema: Any) -> Described:
    # Its buttons are for people, and what is not an object's schema of bounded size is left out.
    given = schema.get("properties") if isinstance(schema, dict) else None
    plain = plain_schema(schema)
    if not isinstance(given, dict) or len(orjson.dumps(plain)) > _LONGEST_SCHEMA:
        return described
    buttons = {name for name, shape in given.items() if isinstance(shape, dict) and "dial:widget" in shape}
    arguments = {
        name: shape
        for name, shape in plain.get("properties", {}).items()
        if _ARGUMENT.fullmatch(name) and name not in buttons
    }
    return replace(described, arguments=arguments, required=tuple(arguments.keys() & set(plain.get("required", ()))))


def calling(caller: Caller, name: str) -> Caller:
    """The caller as the deployment `name` shall see it: with the path of the calls that led there.

    Raises:
        ToolError: the deployment is on that path already, or the path is too long.
    """
    given = next((value for key, value in caller.headers.items() if key.upper() == CALL_PATH), "")
    path = [unquote(part) for part in given.split(",") if part]
    if name in path:
        raise ToolError(f"{name} is not called: it is answering this request already, and would call itself for ever.")
    if len(path) >= DEEPEST or len(given) > DEEPEST * 3 * LONGEST_NAME:
        raise ToolError(f"{name} is not called: {DEEPEST} deployments are calling each other already. Answer without.")
    headers = {key: value for key, value in caller.headers.items() if key.upper() != CALL_PATH}
    return replace(caller, headers={**headers, CALL_PATH: ",".join(quote(part, safe="") for part in (*path, name))})
