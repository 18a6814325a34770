"""All MCP servers of one agent: their lists of tools, kept and refreshed in the background, and their failures."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from task.conversation.inputs import MOST_QUOTED
from task.conversation.messages import Attachment
from task.core_client.files import DialFiles
from task.core_client.models import TOOLSET, SignIn, no_access
from task.errors import AgentError, NotFound, ToolError, new_reference
from task.output.sinks import ChoiceSink, StageProcessor
from task.permissions.names import names_of
from task.shared.redis_store import RedisStore
from task.tools.base import BaseTool
from task.tools.find_tools import RESERVED
from task.tools.mcp.connection import CallIdentity, LocalProgram, identity_of, sdk_loaded
from task.tools.mcp.mcp_client import TOOL_SECONDS, MCPClient
from task.tools.mcp.mcp_tool import READ_RESOURCE, TO_SIGN_IN, MCPTool, Open, ReadResourceTool, stored
from task.tools.mcp.mcp_tool_model import LONGEST_SCHEMA, fit, model_name, usable
from task.tools.mcp.offers import Catalogue, Listing, MCPItem, Offer
from task.tools.mcp.results import Fault, MCPFailure
from task.tools.models import Caller

if TYPE_CHECKING:
    from task.tools.mcp.oauth import UserSignIns

logger = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds a request waits for a list it needs
FRESH_SECONDS = 60.0
MAX_CATALOGUES = 256  # lists of servers that are asked with each user's own key
MAX_TOOLS = 100
MAX_NAMED, LONGEST_NAMED_SCHEMA = 256, 20_000  # of servers that users name, who are many
ISSUES_TITLE = "Initialization issues"
_OFFER = TypeAdapter(Offer)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server of the settings; `tools` lists the allowed ones, None allows all.

    With `program` it is started on this machine; `toolset` is its id where it is a toolset of DIAL Core. `called` is
    the name in DIAL of one that users name: the names of its tools begin with the server's, so that they are never
    those that a rule is about. `sign_in`: each user signs in to it, and is asked with a tool `sign_in_NAME`. The tools
    of a `builtin` one, a companion of the product, are always sent. With
    `client` it is an API that is not an MCP server.
    """

    name: str
    url: str
    token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: frozenset[str] | None = None
    forward_key: bool = False
    seconds: float = TOOL_SECONDS
    program: LocalProgram | None = None
    toolset: str = ""
    called: str = ""
    sign_in: bool = False
    builtin: bool = False
    client: MCPClient | None = None


@dataclass(frozen=True, slots=True)
class Discovered:
    tools: tuple[BaseTool, ...] = ()
    issues: tuple[MCPFailure, ...] = ()

    def show(self, choice: ChoiceSink) -> None:
        """List the issues, if any, in a stage of their own; that a user has not signed in yet is none."""
        issues = [issue for issue in self.issues if str(issue) != TO_SIGN_IN.format(issue.server)]
        if not issues:
            return
        stage = StageProcessor.open_stage(choice, ISSUES_TITLE)
        reference = new_reference()
        missing = "; ".join(f"{issue.server}: {issue.summary}" for issue in issues)
        logger.warning("tools are missing (reference %s): %s", reference, missing)
        stage.append_content("\n".join(f"## {issue.server}\n\n{issue}\n" for issue in issues))
        stage.append_content(f"\n(error reference: {reference})\n")
        StageProcessor.close_stage_safely(stage, failed=True)

    def note(self) -> str:
        """The issues for the model; empty if there are none."""
        if not self.issues:
            return ""
        lines = "".join(f"\n- {issue.server}: {issue}" for issue in self.issues)
        return f"\n\nSome tools are not available right now:{lines}"


class MCPHub:
    """The servers and their lists of tools; one for the whole process, in one event loop.

    A list is `fresh_seconds` old at most, or is read again in the background; a request waits `patience` seconds for a
    list that is missing. `redis` has the lists of other processes. `sign_in` opens DIAL's dialog for toolsets,
    `user_sign_ins` has the tokens of users at other servers.
    """

    def __init__(
        self,
        servers: Sequence[ServerSpec],
        files: DialFiles | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        fresh_seconds: float = FRESH_SECONDS,
        patience: float = PATIENCE,
        redis: RedisStore | None = None,
        sign_in: Open | None = None,
        user_sign_ins: UserSignIns | None = None,
    ) -> None:
        self.files = files
        self.sign_in, self.user_sign_ins = sign_in, user_sign_ins
        self.clock = clock
        self.fresh_seconds = fresh_seconds
        self.patience = patience
        self.redis = redis
        self.prompting = False  # a server has listed prompts
        self._servers = [Server(self, spec) for spec in servers]
        self._named: OrderedDict[str, Server] = OrderedDict()

    @property
    def signing_in(self) -> UserSignIns:
        """The sign-ins of users. Raises: NotFound: no server wants them."""
        if self.user_sign_ins is None:
            raise NotFound("There is no server to sign in to.")
        return self.user_sign_ins

    async def discover(
        self, caller: Caller | None = None, taken: Collection[str] = (), named: Sequence[ServerSpec] = ()
    ) -> Discovered:
        """The tools of all servers in a stable order, and of those `named` for this caller, under names not `taken`.

        Without a caller, servers that need the caller's own key are left out. Toolsets to which the user has to sign in
        are requested together, in one dialog.
        """
        servers = [server for server in self._servers if caller is not None or not server.of_users]
        for spec in named:
            place = f"{spec.url} {dict(spec.headers)}"  # clients name servers with headers of their own
            self._named[place] = server = self._named.pop(place, None) or Server(self, spec)
            servers.append(server)
        if (spare := len(self._named) - MAX_NAMED) > 0:  # those of running calls stay, however many others are named
            idle = [url for url, one in self._named.items() if not one.client.running and one not in servers]
            for server in [self._named.pop(url) for url in idle[:spare]]:
                await server.close()
        lists = await asyncio.gather(*(server.ready(caller) for server in servers))
        found = list(zip(servers, lists, strict=True))
        toolsets = [(one, known) for one, known in found if one.spec.toolset and known.unauthorized]
        if toolsets and caller is not None and self.sign_in is not None:
            locked = {SignIn(TOOLSET, one.spec.toolset): (one, known) for one, known in toolsets}
            results = await self.sign_in(caller, [*locked])
            await asyncio.gather(*(locked[item][0].ready(caller) for item in locked if results[item] == "success"))
            for item, (server, known) in locked.items():
                if known.unauthorized:
                    text = no_access(results[item], server.spec.name)
                    known.failure = MCPFailure(Fault.CREDENTIAL, server.spec.name, text, 401)
        names = {*taken, *RESERVED, READ_RESOURCE}
        tools = [tool for server, known in found for tool in server.tools(known, names)]
        offers = [(one, known.offer) for one, known in found if one.readable and known.offer]
        if readable := {one.spec.name: (one, offer) for one, offer in offers if offer.resources}:
            tools.append(ReadResourceTool(readable))
        return Discovered(tuple(tools), tuple(known.failure for known in lists if known.failure is not None))

    async def items(self, caller: Caller) -> list[MCPItem]:
        """The prompts and resources of all servers for this caller; what servers say of them is text from outside."""
        return [item for _, offer in await self._offers(caller) for item in offer.items]

    async def prompts(self, caller: Caller) -> list[MCPItem]:
        """The prompts without arguments that are needed, of the servers from which the model may read."""
        offers = [offer for one, offer in await self._offers(caller) if one.readable]
        return [item for offer in offers for item in offer.items if item.pick.startswith("/") and not item.required]

    async def picked(self, caller: Caller, pick: str, arguments: Mapping[str, str] | None = None) -> Attachment:
        """A resource, or a prompt with these arguments, for a message: a text to be quoted in it, which the user has
        chosen and did not write, or a file among the caller's own.

        Raises:
            NotFound: it is not listed.
            ToolError: it is too large or cannot be kept, or the server does not answer.
        """
        server, _, name = pick[1:].partition(":")
        if not server or not (found := await self._offers(caller, server)):
            raise NotFound(f"There is no server {server!r}, or it cannot be reached.")
        one, offer = found[0]
        offer.check(pick, arguments)
        try:
            if pick.startswith("@"):
                return await one.resource(name, caller, MOST_QUOTED)
            given, identity = dict(arguments or {}), await one.identity(caller)
            return Attachment("text/plain", pick, data=await one.client.prompt(name, given, identity=identity))
        except MCPFailure as failure:  # without its advice for the model
            raise ToolError(f"{failure.summary}.") from failure

    async def _offers(self, caller: Caller, name: str = "") -> list[tuple[Server, Offer]]:
        servers = [server for server in self._servers if name in ("", server.spec.name)]
        lists = await asyncio.gather(*(server.ready(caller) for server in servers))
        return [(one, known.offer) for one, known in zip(servers, lists, strict=True) if known.offer is not None]

    async def tools_at(self, url: str) -> list[BaseTool]:
        """The tools of the server at `url`, which no request gets if it is new.

        Raises:
            MCPFailure: the server cannot be reached.
        """
        server = next((server for server in self._servers if server.spec.url == url), None)
        server = server or self._named.setdefault(f"at {url}", Server(self, ServerSpec(url, url)))
        catalogue = await server.ready(None)
        if catalogue.failure is not None:
            raise catalogue.failure
        return list(server.tools(catalogue, set(RESERVED)))

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in (*self._servers, *self._named.values())))


class Server:
    """A server of the hub: one list of tools, or one for each user where it is asked with the user's own key."""

    def __init__(self, hub: MCPHub, spec: ServerSpec) -> None:
        self.spec = spec
        self._hub = hub
        self.client = spec.client or MCPClient(
            spec.url, token=spec.token, headers=spec.headers, timeout=spec.seconds, name=spec.name, program=spec.program
        )
        self._catalogues: OrderedDict[str, Catalogue] = OrderedDict()
        self.of_users = spec.forward_key or spec.sign_in
        # By the model: where tools are listed, reading is one of them.
        self.readable = not spec.called and (spec.tools is None or READ_RESOURCE in spec.tools)

    async def identity(self, caller: Caller | None) -> CallIdentity:
        """What is sent of the caller. Raises: MCPFailure: the user has to sign in."""
        identity, sign_ins = await identity_of(caller, forward_key=self.spec.forward_key), self._hub.user_sign_ins
        if not self.spec.sign_in or caller is None or sign_ins is None:
            return identity
        owner, name = await caller.principal(), self.spec.name
        missing = MCPFailure(Fault.CREDENTIAL, name, TO_SIGN_IN.format(name), 401)
        try:
            token = await sign_ins.token(owner, name)
        except AgentError as error:
            raise MCPFailure(Fault.UNAVAILABLE, name, str(error)) from error
        if token is None:
            raise missing

        async def refused() -> MCPFailure:
            await sign_ins.forget(owner, name, token)
            return missing

        return CallIdentity({**identity.headers, "Authorization": f"Bearer {token}"}, owner, own=True, refused=refused)

    async def resource(self, uri: str, caller: Caller, longest: int) -> Attachment:
        """Its text if that is not too long, else a file among the caller's own. Raises: ToolError."""
        files = await self.client.read(uri, identity=await self.identity(caller))
        texts = [file.text for file in files if file.text is not None]
        if texts and len(text := "\n\n".join(texts)) <= longest:
            kind = re.fullmatch(r"text/[\w.+-]{1,60}", files[0].mime_type)
            return Attachment(kind[0] if kind else "text/plain", f"@{self.spec.name}:{uri}", data=text)
        return await stored(self._hub.files, files, caller.api_key)

    async def ready(self, caller: Caller | None) -> Catalogue:
        """The list for this caller, or why there is none."""
        try:
            identity = await self.identity(caller)
        except MCPFailure as failure:
            return Catalogue(self._hub, self.spec.name, failure)
        key = sha256(identity.partition.encode()).hexdigest()
        catalogue = self._catalogues.setdefault(key, Catalogue(self._hub, self.spec.name))
        self._catalogues.move_to_end(key)
        if len(self._catalogues) > MAX_CATALOGUES:
            _, oldest = self._catalogues.popitem(last=False)
            await oldest.close()
        await sdk_loaded()  # its import must not count as time of the server
        doubted = self.client.failure is not None and not self.of_users
        doubted |= self.client.changes != catalogue.changes
        suspected = doubted or catalogue.failure is not None
        await catalogue.ready(lambda: self._listing(catalogue, identity, suspected=suspected), doubted=doubted)
        return catalogue

    def tools(self, catalogue: Catalogue, taken: set[str]) -> Iterator[BaseTool]:
        """The tools of the list under names that are not `taken`, to which they are added."""
        spec = self.spec
        for model in catalogue.offer.tools if catalogue.offer is not None else ():
            begins = f"{spec.name}_" if spec.called else ""
            name = model_name(f"{begins}{model.name}", spec.name, taken)
            if name in taken:  # a server may list one name many times
                continue
            taken.add(name)
            yield MCPTool(
                self.client,
                model,
                name=name,
                files=self._hub.files,
                toolset=spec.toolset,
                sign_in=self._hub.sign_in if spec.forward_key else None,
                called=spec.called,
                identify=self.identity,
                offered_by="" if spec.builtin else spec.name,
            )

    async def close(self) -> None:
        for catalogue in list(self._catalogues.values()):
            await catalogue.close()
        await self.client.close()

    async def _listing(self, catalogue: Catalogue, identity: CallIdentity, *, suspected: bool) -> Listing:
        spec, seconds, catalogue.changes = self.spec, self._hub.fresh_seconds, self.client.changes
        redis = self._hub.redis if spec.program is None and spec.client is None else None
        # What was listed with a user's own key is found with the key of the same user only.
        asked = (
            spec.name,
            spec.called,
            spec.url,
            spec.token,
            sorted(spec.headers.items()),
            spec.tools and sorted(spec.tools),
        )
        key = sha256(repr(("offer", asked, identity.own, identity.partition)).encode("utf-8", "replace")).hexdigest()
        if redis is not None and not suspected and (stored := await redis.listing(key, seconds)) is not None:
            try:
                return _OFFER.validate_json(stored[0]), stored[1]
            except ValueError:
                logger.warning("a stored list of tools is damaged and was not used")
        offer = await self.client.offer(identity=identity)
        wanted = [tool for tool in offer.tools if spec.tools is None or not spec.tools.isdisjoint(names_of(tool.name))]
        longest = LONGEST_NAMED_SCHEMA if spec.called else LONGEST_SCHEMA
        found = await asyncio.to_thread(lambda: [(tool.name, usable(tool, longest)) for tool in wanted[:MAX_TOOLS]])
        if refused := [fit(name) for name, model in found if model is None]:
            logger.warning("%s: not offered, for their schemas are too large: %s", spec.name, ", ".join(refused))
        offer = replace(offer, tools=[model for _, model in found if model is not None])
        if redis is not None:
            await redis.put_listing(key, _OFFER.dump_json(offer), seconds)
        return offer, 0.0
