"""What an MCP server offers beside tools: resources that can be read, and prompts. All of it is text from outside."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from task.errors import InvalidRequest, NotFound, new_reference
from task.tools.mcp.mcp_tool_model import MCPToolModel, model_of
from task.tools.mcp.results import Fault, MCPFailure

if TYPE_CHECKING:
    import mcp.types as wire
    from mcp import Client

    from task.tools.mcp.hub import MCPHub

logger = logging.getLogger(__name__)

PAGES = 50
OTHERS_SECONDS = 2.0  # for resources and prompts: the list of tools must not wait for them
MAX_RESOURCES, MAX_PROMPTS, MAX_ARGUMENTS = 1_000, 100, 20  # of a server; arguments of a prompt
LONGEST_PICK, LONGEST_NAME, LONGEST_TEXT, LONGEST_PROMPT = 2_000, 100, 500, 100_000
_UNFIT = re.compile(r"[\x00-\x20\x7f-\xa0\\]")


@dataclass(frozen=True, slots=True)
class MCPItem:
    """What a user may pick of a server: `pick` is `/server:name` of a prompt, or `@server:uri` of a resource.

    A `uri` with variables in braces stands for all that they lead to. `arguments` are those of a prompt, with what
    they are for; it needs the `required` ones.
    """

    pick: str
    title: str
    description: str
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    required: tuple[str, ...] = ()

    @property
    def uri(self) -> str:
        return self.pick.partition(":")[2]

    def covers(self, pick: str) -> bool:
        """Whether it is this one, or is built from this template: its scheme, its host, no folder above."""
        fixed, template, _ = self.pick.partition("{")
        uri = pick.partition(":")[2]
        read = unquote(uri)
        clean = not _UNFIT.search(uri + read.replace(" ", "")) and ".." not in re.split(r"[/?#]", read)
        return pick == fixed or bool(template and clean and pick.startswith(fixed) and _host(uri) == _host(self.uri))


@dataclass(frozen=True, slots=True)
class Offer:
    """All that a server lists."""

    tools: list[MCPToolModel] = field(default_factory=list[MCPToolModel])
    items: list[MCPItem] = field(default_factory=list[MCPItem])

    @property
    def resources(self) -> list[MCPItem]:
        return [item for item in self.items if item.pick.startswith("@")]

    def check(self, pick: str, given: Mapping[str, str] | None = None) -> None:
        """Raises: NotFound: no item covers it. InvalidRequest: an argument that it needs is missing."""
        item = next((item for item in self.items if item.covers(pick)), None)
        if item is None or len(pick) > LONGEST_PICK:
            raise NotFound("The server does not list this.")
        if missing := [name for name in item.required if not (given or {}).get(name)]:
            raise InvalidRequest(f"{pick} needs a value for: {', '.join(missing)}.")


Listing = tuple[Offer, float]  # with its age in seconds


async def offer_of(client: Client, server: str) -> Offer:
    """The server's tools, and what it has of resources and prompts, if it lists them in time."""
    has = client.server_capabilities
    readable, prompting = bool(has.resources), bool(has.prompts)
    no_tools = has.tools is None and (readable or prompting)
    first, *found = await asyncio.gather(
        asyncio.sleep(0, []) if no_tools else _pages(client.list_tools, "tools"),
        _others(client.list_resources, "resources", readable),
        _others(client.list_resource_templates, "resource_templates", readable),
        _others(client.list_prompts, "prompts", prompting),
        return_exceptions=True,
    )
    if isinstance(first, BaseException):
        raise first
    listed, templates, prompts = ([] if isinstance(item, BaseException) else item for item in found)
    uris = [(item, item.uri) for item in listed] + [(item, item.uri_template) for item in templates]
    # A template whose values decide where it leads is left out.
    fit = [(item, uri) for item, uri in uris if not _UNFIT.search(uri) and ("{" not in uri or _host(uri))]
    picks: list[tuple[Any, str]] = [(item, f"@{server}:{uri}") for item, uri in fit[:MAX_RESOURCES]]
    small = [item for item in prompts if len(item.arguments or ()) <= MAX_ARGUMENTS]  # others are for programs
    picks += [(item, f"/{server}:{item.name}") for item in small[:MAX_PROMPTS]]
    return Offer(list(map(model_of, first)), [_item(item, pick) for item, pick in picks if len(pick) <= LONGEST_PICK])


class Catalogue:
    """The last good list of what a server offers, and the server's current failure, if any."""

    def __init__(self, hub: MCPHub, server: str, failure: MCPFailure | None = None) -> None:
        self.offer: Offer | None = None
        self.changes = 0  # of the lists that the server had reported when they were read
        self.failure = failure
        self._hub, self._server = hub, server
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    @property
    def unauthorized(self) -> bool:
        return self.failure is not None and self.failure.status == 401

    async def ready(self, fetch: Callable[[], Awaitable[Listing]], *, doubted: bool) -> None:
        """Wait until `offer` or `failure` is known; `doubted`: a call has failed, or the lists changed, since then."""
        trusted = self.offer is not None and self.failure is None and not doubted
        if trusted and self._hub.clock() - self._read_at < self._hub.fresh_seconds:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(fetch))
        if trusted:
            return
        # One request waits for a server that hangs; later ones find its list when it has come.
        hung = self.failure is not None and self.failure.fault is Fault.TIMEOUT
        done, _ = await asyncio.wait({self._reading}, timeout=0.0 if hung else self._hub.patience)
        if not done and self.failure is None:
            self.failure = MCPFailure(Fault.TIMEOUT, self._server, "The server did not list its tools in time.")

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def _read(self, fetch: Callable[[], Awaitable[Listing]]) -> None:
        try:
            offer, age = await fetch()
        except MCPFailure as failure:
            self.failure = failure
        except Exception:
            reference = new_reference()
            logger.exception("the tools of a server could not be listed (reference %s)", reference)
            text = f"Its tools could not be listed (reference {reference})."
            self.failure = MCPFailure(Fault.BROKEN, self._server, text)
        else:
            self.offer, self.failure = offer, None
            self._hub.prompting |= any(item.pick.startswith("/") for item in offer.items)
            self._read_at = self._hub.clock() - age


def text_of(messages: Sequence[wire.PromptMessage]) -> str:
    """The text of a prompt; what it has of pictures and sounds is left out, which it says."""
    texts: list[str] = []
    for message in messages:
        content: Any = message.content
        said = getattr(getattr(content, "resource", content), "text", f"[A part of type {content.type} was left out.]")
        texts.append(said if message.role == "user" else f"Assistant: {said}")
    return "\n\n".join(texts)[:LONGEST_PROMPT]


async def _others(listing: Callable[..., Awaitable[Any]], field: str, offered: bool) -> list[Any]:
    return await asyncio.wait_for(_pages(listing, field), OTHERS_SECONDS) if offered else []


async def _pages(listing: Callable[..., Awaitable[Any]], field: str) -> list[Any]:
    page = await listing(cache_mode="refresh")
    found = list(getattr(page, field))
    for _ in range(PAGES):
        if not page.next_cursor:
            break
        page = await listing(cursor=page.next_cursor)
        found += getattr(page, field)
    return found


def _host(uri: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    return (parts.scheme, parts.netloc) if parts.scheme and "{" not in parts.netloc else None


def _item(item: Any, pick: str) -> MCPItem:
    wanted = getattr(item, "arguments", None) or ()
    arguments = {one.name[:LONGEST_NAME]: _line(one.description, LONGEST_TEXT) for one in wanted}
    required = (one.name[:LONGEST_NAME] for one in wanted if one.required)
    return MCPItem(
        pick,
        _line(item.title or item.name, LONGEST_NAME),
        _line(item.description, LONGEST_TEXT),
        arguments,
        tuple(required),
    )


def _line(text: str | None, longest: int) -> str:
    return " ".join((text or "")[:longest].split())
