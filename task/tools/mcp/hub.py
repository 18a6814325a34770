"""All MCP servers of one agent: their tools for a request, and what the user must know about those that fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from task.conversation.sinks import ChoiceSink
from task.tools.base import BaseTool
from task.tools.mcp.catalogue import FRESH_SECONDS, PATIENCE, Catalogue
from task.tools.mcp.connection import Identity, sdk_loaded
from task.tools.mcp.mcp_client import TOOL_SECONDS, MCPClient
from task.tools.mcp.mcp_tool import FileStore, MCPTool, identity_of
from task.tools.mcp.mcp_tool_model import MCPToolModel
from task.tools.mcp.names import model_name
from task.tools.mcp.schemas import usable
from task.tools.models import Caller
from task.utils.stage import StageProcessor

logger = logging.getLogger(__name__)

MAX_CATALOGUES = 256  # lists of servers that are asked with each user's own key
MAX_TOOLS = 100
ISSUES_TITLE = "Initialization issues"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server as the operator names it; `tools` lists the allowed ones, None allows all."""

    name: str
    url: str
    token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: frozenset[str] | None = None
    forward_key: bool = False
    seconds: float = TOOL_SECONDS


@dataclass(frozen=True, slots=True)
class Issue:
    """What is wrong with a server: `text` with advice for the model, `told` for people."""

    server: str
    text: str
    told: str = ""


@dataclass(frozen=True, slots=True)
class Discovered:
    tools: tuple[BaseTool, ...] = ()
    issues: tuple[Issue, ...] = ()

    def show(self, choice: ChoiceSink) -> None:
        """Tell the user in a stage of its own what is missing; nothing where nothing is."""
        if not self.issues:
            return
        stage = StageProcessor.open_stage(choice, ISSUES_TITLE)
        stage.append_content("\n".join(f"## {issue.server}\n\n{issue.text}\n" for issue in self.issues))
        StageProcessor.close_stage_safely(stage, failed=True)

    def note(self) -> str:
        """The same for the model; empty where nothing is missing."""
        if not self.issues:
            return ""
        lines = [f"- {issue.server}: {issue.text}" for issue in self.issues]
        return "\n".join(["", "", "Some tools are not available right now:", *lines])


class MCPHub:
    """Knows the servers and keeps their lists; one for the whole process, inside one event loop."""

    def __init__(
        self,
        servers: Sequence[ServerSpec],
        files: FileStore | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        fresh_seconds: float = FRESH_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        def catalogue() -> Catalogue:
            return Catalogue(clock=clock, fresh_seconds=fresh_seconds, patience=patience)

        self._new_server = partial(_Server, files=files, new_catalogue=catalogue)
        self._servers = [self._new_server(spec) for spec in servers]

    async def discover(self, caller: Caller | None = None, taken: Collection[str] = ()) -> Discovered:
        """The tools of all servers in a stable order, under names that are not `taken`.

        Without a caller the servers that want a caller's own key are left out.
        """
        servers = [server for server in self._servers if caller is not None or not server.spec.forward_key]
        if not servers:
            return Discovered((), ())
        found = await asyncio.gather(*(server.ready(caller) for server in servers))
        names = set(taken)
        tools: list[BaseTool] = []
        for server, catalogue in zip(servers, found, strict=True):
            for tool in server.tools(catalogue, names):
                names.add(tool.name)
                tools.append(tool)
        issues = [
            Issue(server.spec.name, str(catalogue.failure), catalogue.failure.told)
            for server, catalogue in zip(servers, found, strict=True)
            if catalogue.failure is not None
        ]
        return Discovered(tuple(tools), tuple(issues))

    async def tools_at(self, url: str) -> list[BaseTool]:
        """The tools of one server, which becomes one of the hub's if it was none.

        Raises:
            MCPFailure: the server cannot be asked.
        """
        server = next((server for server in self._servers if server.spec.url == url), None)
        if server is None:
            server = self._new_server(ServerSpec(url, url))
            self._servers.append(server)
        catalogue = await server.ready(None)
        if catalogue.failure is not None:
            raise catalogue.failure
        return list(server.tools(catalogue, set()))

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))


class _Server:
    def __init__(self, spec: ServerSpec, files: FileStore | None, new_catalogue: Callable[[], Catalogue]) -> None:
        self.spec = spec
        self._files = files
        self._client = MCPClient(
            spec.url, token=spec.token, headers=spec.headers, timeout=spec.seconds, name=spec.name
        )  # fmt: skip
        self._new_catalogue = new_catalogue
        self._catalogues: OrderedDict[str, Catalogue] = OrderedDict()

    async def ready(self, caller: Caller | None) -> Catalogue:
        identity = await identity_of(caller, forward_key=self.spec.forward_key)
        catalogue = await self._catalogue(identity)
        await sdk_loaded()  # not at the expense of the request's patience with the server
        doubted = self._client.failure is not None and not self.spec.forward_key
        await catalogue.ready(lambda: self._listed(identity), doubted=doubted)
        return catalogue

    async def _listed(self, identity: Identity) -> list[MCPToolModel]:
        allowed = self.spec.tools
        offered = await self._client.get_tools(identity=identity)
        wanted = [tool for tool in offered if allowed is None or tool.name in allowed]
        fitting = [model for tool in wanted if (model := usable(tool)) is not None]
        if len(fitting) < len(wanted):
            logger.warning("%s: %d tools have schemas that cannot be used", self.spec.name, len(wanted) - len(fitting))
        return fitting[:MAX_TOOLS]

    def tools(self, catalogue: Catalogue, taken: Collection[str]) -> list[BaseTool]:
        names = set(taken)
        tools: list[BaseTool] = []
        for model in catalogue.tools or ():
            name = model_name(model.name, self.spec.name, names)
            names.add(name)
            tools.append(MCPTool(self._client, model, name=name, files=self._files, forward_key=self.spec.forward_key))
        return tools

    async def close(self) -> None:
        for catalogue in list(self._catalogues.values()):
            await catalogue.close()
        await self._client.close()

    async def _catalogue(self, identity: Identity) -> Catalogue:
        key = sha256(identity.partition.encode()).hexdigest()
        if key not in self._catalogues:
            self._catalogues[key] = self._new_catalogue()
            if len(self._catalogues) > MAX_CATALOGUES:
                _, oldest = self._catalogues.popitem(last=False)
                await oldest.close()
        self._catalogues.move_to_end(key)
        return self._catalogues[key]
