"""All MCP servers of one agent: their lists of tools, kept and refreshed in the background, and their failures."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from task.core_client.files import DialFiles
from task.core_client.models import TOOLSET, SignIn, no_access
from task.errors import AgentError, NotFound, new_reference
from task.output.sinks import ChoiceSink, StageProcessor
from task.permissions.names import ALIASES, names_of
from task.shared.redis_store import RedisStore
from task.tools.base import BaseTool
from task.tools.mcp.connection import CallIdentity, LocalProgram, identity_of, sdk_loaded
from task.tools.mcp.mcp_client import TOOL_SECONDS, MCPClient
from task.tools.mcp.mcp_tool import TO_SIGN_IN, MCPTool, Open
from task.tools.mcp.mcp_tool_model import LONGEST_SCHEMA, MCPToolModel, fit, model_name, usable
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
_LIST = TypeAdapter(list[MCPToolModel])
Listing = tuple[list[MCPToolModel], float]  # with its age in seconds
Fetch = Callable[[], Awaitable[Listing]]


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server of the settings; `tools` lists the allowed ones, None allows all.

    With `program` it is started on this machine; `toolset` is its id where it is a toolset of DIAL Core. `called` is
    the name in DIAL of one that users name: the names of its tools begin with the server's, so that they are never
    those that a rule is about. `sign_in`: each user signs in to it, and is asked with a tool `sign_in_NAME`. The tools
    of a `builtin` one, a companion of the product, are always sent.
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
        self._servers = [_Server(self, spec) for spec in servers]
        self._named: OrderedDict[str, _Server] = OrderedDict()

    @property
    def signing_in(self) -> UserSignIns:
        """The sign-ins of users. Raises: NotFound: no server wants them."""
        if self.user_sign_ins is None:
            raise NotFound("There is no server to sign in to.")
        return self.user_sign_ins

    async def discover(
        self,
        caller: Caller | None = None,
        taken: Collection[str] = (),
        named: Sequence[ServerSpec] = (),
    ) -> Discovered:
        """The tools of all servers in a stable order, and of those `named` for this caller, under names not `taken`.

        Without a caller, servers that need the caller's own key are left out. Toolsets to which the user has to sign in
        are requested together, in one dialog.
        """
        servers = [server for server in self._servers if caller is not None or not server.of_users]
        for spec in named:
            self._named[spec.url] = server = self._named.pop(spec.url, None) or _Server(self, spec)
            servers.append(server)
        if (spare := len(self._named) - MAX_NAMED) > 0:  # those of running calls stay, however many others are named
            idle = [url for url, one in self._named.items() if not one.client.running and one not in servers]
            for server in [self._named.pop(url) for url in idle[:spare]]:
                await server.close()
        found = await asyncio.gather(*(server.ready(caller) for server in servers))
        locked = {
            SignIn(TOOLSET, server.spec.toolset): (server, known)
            for server, known in zip(servers, found, strict=True)
            if server.spec.toolset and known.unauthorized
        }
        if locked and caller is not None and self.sign_in is not None:
            results = await self.sign_in(caller, [*locked])
            await asyncio.gather(*(locked[item][0].ready(caller) for item in locked if results[item] == "success"))
            for item, (server, known) in locked.items():
                if known.unauthorized:
                    text = no_access(results[item], server.spec.name)
                    known.failure = MCPFailure(Fault.CREDENTIAL, server.spec.name, text, 401)
        names = {*taken, *ALIASES}  # an alias never means the tool of another server
        tools = [tool for server, known in zip(servers, found, strict=True) for tool in server.tools(known, names)]
        return Discovered(tuple(tools), tuple(known.failure for known in found if known.failure is not None))

    async def tools_at(self, url: str) -> list[BaseTool]:
        """The tools of the server at `url`, which is added to the hub if it is new.

        Raises:
            MCPFailure: the server cannot be reached.
        """
        server = next((server for server in self._servers if server.spec.url == url), None)
        if server is None:
            server = _Server(self, ServerSpec(url, url))
            self._servers.append(server)
        catalogue = await server.ready(None)
        if catalogue.failure is not None:
            raise catalogue.failure
        return list(server.tools(catalogue, set(ALIASES)))

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in (*self._servers, *self._named.values())))


class _Server:
    """A server of the hub: one list of tools, or one for each user where it is asked with the user's own key."""

    def __init__(self, hub: MCPHub, spec: ServerSpec) -> None:
        self.spec = spec
        self._hub = hub
        self.client = MCPClient(
            spec.url, token=spec.token, headers=spec.headers, timeout=spec.seconds, name=spec.name, program=spec.program
        )
        self._catalogues: OrderedDict[str, _Catalogue] = OrderedDict()
        self.of_users = spec.forward_key or spec.sign_in

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

    async def ready(self, caller: Caller | None) -> _Catalogue:
        """The list for this caller, or why there is none."""
        try:
            identity = await self.identity(caller)
        except MCPFailure as failure:
            return _Catalogue(self._hub, self.spec.name, failure)
        key = sha256(identity.partition.encode()).hexdigest()
        catalogue = self._catalogues.setdefault(key, _Catalogue(self._hub, self.spec.name))
        self._catalogues.move_to_end(key)
        if len(self._catalogues) > MAX_CATALOGUES:
            _, oldest = self._catalogues.popitem(last=False)
            await oldest.close()
        await sdk_loaded()  # its import must not count as time of the server
        doubted = self.client.failure is not None and not self.of_users
        suspected = doubted or catalogue.failure is not None
        await catalogue.ready(lambda: self._listing(identity, suspected=suspected), doubted=doubted)
        return catalogue

    def tools(self, catalogue: _Catalogue, taken: set[str]) -> Iterator[BaseTool]:
        """The tools of the list under names that are not `taken`, to which they are added."""
        spec = self.spec
        for model in catalogue.tools or ():
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

    async def _listing(self, identity: CallIdentity, *, suspected: bool) -> Listing:
        spec, seconds = self.spec, self._hub.fresh_seconds
        redis = self._hub.redis if spec.program is None else None
        # What was listed with a user's own key is found with the key of the same user only.
        settings = [spec.url, spec.token, sorted(spec.headers.items()), sorted(spec.tools or ()) or spec.tools]
        whose = [json.dumps(list(map(str, settings))), identity.own, identity.partition]
        key = sha256(json.dumps(whose).encode("utf-8", "replace")).hexdigest()
        if redis is not None and not suspected and (stored := await redis.listing(key, seconds)) is not None:
            try:
                return _LIST.validate_json(stored[0]), stored[1]
            except ValueError:
                logger.warning("a stored list of tools is damaged and was not used")
        offered = await self.client.get_tools(identity=identity)
        wanted = [tool for tool in offered if spec.tools is None or not spec.tools.isdisjoint(names_of(tool.name))]
        longest = LONGEST_NAMED_SCHEMA if spec.called else LONGEST_SCHEMA
        found = await asyncio.to_thread(lambda: [(tool.name, usable(tool, longest)) for tool in wanted[:MAX_TOOLS]])
        if refused := [fit(name) for name, model in found if model is None]:
            logger.warning("%s: not offered, for their schemas are too large: %s", spec.name, ", ".join(refused))
        tools = [model for _, model in found if model is not None]
        if redis is not None:
            await redis.put_listing(key, _LIST.dump_json(tools), seconds)
        return tools, 0.0


class _Catalogue:
    """The last good list of a server's tools, and the server's current failure, if any."""

    def __init__(self, hub: MCPHub, server: str, failure: MCPFailure | None = None) -> None:
        self.tools: list[MCPToolModel] | None = None
        self.failure = failure
        self._hub, self._server = hub, server
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    @property
    def unauthorized(self) -> bool:
        return self.failure is not None and self.failure.status == 401

    async def ready(self, fetch: Fetch, *, doubted: bool) -> None:
        """Wait until `tools` or `failure` is known; `doubted`: a call has failed since the list was read."""
        trusted = self.tools is not None and self.failure is None and not doubted
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

    async def _read(self, fetch: Fetch) -> None:
        try:
            tools, age = await fetch()
        except MCPFailure as failure:
            self.failure = failure
        except Exception:
            reference = new_reference()
            logger.exception("the tools of a server could not be listed (reference %s)", reference)
            text = f"Its tools could not be listed (reference {reference})."
            self.failure = MCPFailure(Fault.BROKEN, self._server, text)
        else:
            self.tools, self.failure = tools, None
            self._read_at = self._hub.clock() - age
