"""MCPClient: the tools of one MCP server, which may restart at any time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, cast

from task.errors import ToolError
from task.telemetry.operations import trace_headers
from task.tools.mcp.connection import PROBE_SECONDS, SERVICE, CallIdentity, ServerConnection, is_modern
from task.tools.mcp.mcp_tool_model import MCPToolModel
from task.tools.mcp.results import Fault, MCPFailure, MCPFile, MCPResult, files_of, result_of
from task.tools.mcp.stdio import START_SECONDS, LocalProgram

if TYPE_CHECKING:
    import mcp.types as wire
    from mcp import Client

Progress = Callable[[float, float | None, str | None], None]  # done, of how many, in words

TOOL_SECONDS = 300.0
PAGES = 50
PARALLEL = 16


class MCPClient:
    """One MCP server's tools. Source: API reference, MCPClient.

    Nothing is sent before the first call; the server may restart, change its protocol or come back at any time. `name`
    appears in messages; `timeout` bounds a call, `probe_seconds` the request for tools and protocol version. With
    `program` the server is started on this machine, and `url` only identifies it.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = TOOL_SECONDS,
        name: str | None = None,
        parallel: int = PARALLEL,
        probe_seconds: float = PROBE_SECONDS,
        program: LocalProgram | None = None,
    ) -> None:
        self.url = url
        self.name = name or url
        self.failure: MCPFailure | None = None
        self.timeout = timeout
        self._tools: dict[str, MCPToolModel] = {}
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        self._probe_seconds = probe_seconds if program is None else START_SECONDS
        given = {**bearer, **(headers or {})}
        self._connection = ServerConnection(url, self.name, given, parallel, probe_seconds, program)

    @staticmethod
    def create(url: str, **options: Any) -> MCPClient:
        """A client for `await` or for `async with`, which closes it; `options` are those of the constructor."""
        return MCPClient(url, **options)

    def __await__(self) -> Generator[Any, None, MCPClient]:
        yield from ()
        return self

    async def get_tools(self, *, identity: CallIdentity = SERVICE) -> list[MCPToolModel]:
        """The server's tools, all pages of them.

        Raises:
            MCPFailure: the server cannot be reached.
        """

        async def use(client: Client) -> list[wire.Tool]:
            page = await client.list_tools(cache_mode="refresh")
            found = list(page.tools)
            for _ in range(PAGES):
                if not page.next_cursor:
                    break
                page = await client.list_tools(cursor=page.next_cursor)
                found += page.tools
            return found

        listed = await self._run(use, self._probe_seconds, identity, repeatable=True)
        tools: list[MCPToolModel] = []
        for tool in listed:
            hints, described = tool.annotations, cleandoc(tool.description or tool.title or tool.name)
            read_only, idempotent = bool(hints and hints.read_only_hint), bool(hints and hints.idempotent_hint)
            tools.append(MCPToolModel(tool.name, described, tool.input_schema, read_only, idempotent))
        self._tools.update((tool.name, tool) for tool in tools)
        return tools

    async def call_tool(self, tool_name: str, arguments: dict[str, Any]) -> str:
        """The text of the tool's result.

        Raises:
            ToolError: the tool failed, or the server did not answer (`MCPFailure`).
        """
        result = await self.call(tool_name, arguments)
        if result.is_error:
            raise ToolError(result.text or f"{tool_name} failed without saying why.")
        return result.text

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it is also sent to the server
        on_progress: Progress | None = None,
        identity: CallIdentity = SERVICE,
    ) -> MCPResult:
        """The tool's result, which may have `is_error`; a cancelled call is cancelled on the server as well.

        `timeout` is in seconds; `meta` is sent as `_meta`.

        Raises:
            MCPFailure: the server did not answer.
        """
        seconds = timeout or self.timeout
        tool = self._tools.get(name)

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            if on_progress:
                on_progress(progress, total, message)

        async def use(client: Client) -> MCPResult:
            if is_modern(client.protocol_version):
                await client.list_tools()  # cached; without it the SDK lists after every call
            answer = await client.call_tool(
                name,
                arguments,
                seconds,
                progressed if on_progress else None,
                meta=cast("Any", {**(meta or {}), **trace_headers()}),
            )
            return result_of(answer)

        return await self._run(use, seconds, identity, repeatable=tool is not None and tool.repeatable)

    async def read(self, uri: str, *, max_bytes: int, identity: CallIdentity = SERVICE) -> list[MCPFile]:
        """The files at a resource link of this server.

        Raises:
            ToolError: they are larger than `max_bytes`, or the server did not answer (`MCPFailure`).
        """

        async def use(client: Client) -> list[MCPFile]:
            return files_of((await client.read_resource(uri, cache_mode="bypass")).contents)

        files = await self._run(use, self.timeout, identity, repeatable=True)
        if sum(len(file.content or b"") for file in files) > max_bytes:
            raise ToolError(f"The file is larger than {max_bytes:,} bytes, which is the most that can be kept.")
        return files

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> MCPClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, use: Any, seconds: float, identity: CallIdentity, *, repeatable: bool) -> Any:
        try:
            result = await self._connection.run(use, seconds, identity, repeatable=repeatable)
        except MCPFailure as failure:
            if failure.fault is not Fault.REFUSED:
                self.failure = failure
            raise
        self.failure = None
        return result
