"""MCPClient: the tools of one MCP server, which may restart at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar, cast

from task.errors import ToolError
from task.shares import Shares
from task.telemetry.operations import trace_headers
from task.tools.mcp.connection import (
    CALL_HEADERS,
    CALL_HOOKS,
    CALL_STATUSES,
    ENDING_SECONDS,
    MAX_EVENT_BYTES,
    SERVICE,
    START_SECONDS,
    CallIdentity,
    LocalProgram,
    OwnedSession,
    connected,
    http_client,
    is_modern,
    sdk_loaded,
)
from task.tools.mcp.elicitation import REFUSED, question_of
from task.tools.mcp.mcp_tool_model import MCPToolModel
from task.tools.mcp.offers import Offer, offer_of, text_of
from task.tools.mcp.results import (
    MAX_FILE_BYTES,
    BoundedStream,
    Fault,
    MCPFailure,
    MCPFile,
    MCPResult,
    failure_of,
    file_of,
    result_of,
)

if TYPE_CHECKING:
    import httpx2
    import mcp.types as wire
    from mcp import Client
    from mcp.client.caching import InMemoryResponseCacheStore

Progress = Callable[[float, float | None, str | None], Awaitable[None]]  # done, of how many, in words

TOOL_SECONDS = 300.0
MOST_KNOWN = 1_000
PARALLEL = 16
OLDER = "users cannot be asked in the middle of a call of this older protocol, which cannot wait for them"
MAX_WAITS, PAUSE_SECONDS = 10, 0.25  # of a call that the server does not answer at once
PROBE_SECONDS = 5.0
GRACE = 2.0  # in which the SDK may report its own time-out before ours ends the call
KEEP_ERA = frozenset({Fault.TIMEOUT, Fault.REFUSED, Fault.TOO_LARGE})
T = TypeVar("T")


class MCPClient:
    """One MCP server's tools. Source: API reference, MCPClient.

    Nothing is sent before the first call; the server may restart, change its protocol or come back at any time. `name`
    appears in messages; `timeout` bounds a call, `probe_seconds` the request for tools and protocol version. With
    `program` the server is started on this machine, and `url` only identifies it.
    """

    kind = "MCP"

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
        self.running = 0  # calls
        self.left_out: Mapping[str, str] = {}  # tools that it describes and does not offer, and why
        self.changes = 0  # how often the server said that one of its lists has changed
        self.timeout = timeout
        self._tools: dict[str, MCPToolModel] = {}
        self._headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        self._program = program
        self._slots = Shares(parallel)
        self._probing = asyncio.Lock()
        self._version: str | None = None
        self._discovered: wire.DiscoverResult | None = None
        self._http: httpx2.AsyncClient | None = None
        self._lists: InMemoryResponseCacheStore | None = None
        self._probe_seconds = START_SECONDS if program else probe_seconds
        if program is None:
            self._session = OwnedSession(lambda _ended: self._client("legacy", SERVICE), probe_seconds)
        else:
            over = partial(self._over, mode="auto", identity=SERVICE)
            self._session = OwnedSession(partial(connected, program, self.name, over), START_SECONDS, ENDING_SECONDS)

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
        return (await self.offer(identity=identity)).tools

    async def offer(self, *, identity: CallIdentity = SERVICE) -> Offer:
        """The server's tools with the resources and prompts that it says it has. Raises: MCPFailure."""

        listing = partial(offer_of, server=self.name)
        offer = await self._run(listing, self._probe_seconds, identity, repeatable=True)
        if len(self._tools) > MOST_KNOWN:  # a server may list others each time
            self._tools.clear()
        self._tools.update((tool.name, tool) for tool in offer.tools)
        return offer

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
        answer: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
    ) -> MCPResult:
        """The tool's result, which may have `is_error`; a cancelled call is cancelled on the server as well.

        `timeout` is in seconds; `meta` is sent as `_meta`. `answer` is the question that the result before was, with
        what is sent for it.

        Raises:
            MCPFailure: the server did not answer.
        """
        seconds = timeout or self.timeout
        tool = self._tools.get(name)

        async def use(client: Client) -> MCPResult:
            if is_modern(client.protocol_version) and (tool is None or "x-mcp-header" in str(tool.parameters)):
                await client.list_tools()  # cached; it tells the SDK which arguments are sent as headers
            client.session.validate_tool_result = _unchecked
            sent, reported = cast("Any", {**(meta or {}), **trace_headers()}), cast("Any", on_progress)
            session, given = cast("Any", client.session), dict[str, Any]()
            if answer is not None:
                question, said = answer
                given = {"input_responses": {question["key"]: said}, "request_state": question["state"]}
                for _ in range(2 * question["round"]):  # requests that belong together must not have the same id
                    await session.send_discover(client.protocol_version)
            for _ in range(MAX_WAITS):
                options = {"meta": sent, "allow_input_required": True, **given}
                result = await session.call_tool(name, arguments, seconds, reported, **options)
                if result.result_type != "input_required":
                    return result_of(result)
                if result.input_requests:
                    try:
                        asked = question_of(result, answer[0]["round"] + 1 if answer is not None else 1)
                    except ValueError as reason:
                        return MCPResult(REFUSED.format(reason), is_error=True)
                    return MCPResult("", question=asked)
                given = {"request_state": result.request_state}
                await asyncio.sleep(PAUSE_SECONDS)
            return MCPResult(f"{name} did not say what it waits for.", is_error=True)

        return await self._run(use, seconds, identity, repeatable=tool is not None and tool.repeatable)

    async def read(
        self, uri: str, *, max_bytes: int = MAX_FILE_BYTES, identity: CallIdentity = SERVICE
    ) -> list[MCPFile]:
        """The files at a resource link of this server.

        Raises:
            ToolError: they are larger than `max_bytes`, or the server did not answer (`MCPFailure`).
        """

        def use(client: Client) -> Awaitable[wire.ReadResourceResult]:
            return client.read_resource(uri, cache_mode="bypass")

        files = list(map(file_of, (await self._run(use, self.timeout, identity, repeatable=True)).contents))
        if sum(len(file.content or b"") for file in files) > max_bytes:
            raise ToolError(f"The file is larger than {max_bytes:,} bytes, which is the most that can be kept.")
        return files

    async def prompt(self, name: str, arguments: dict[str, str], *, identity: CallIdentity = SERVICE) -> str:
        """The text of a prompt with these arguments. Raises: MCPFailure."""

        def use(client: Client) -> Awaitable[wire.GetPromptResult]:
            return client.get_prompt(name, arguments)

        return text_of((await self._run(use, self.timeout, identity, repeatable=True)).messages)

    async def close(self) -> None:
        await self._session.close()
        if (http := self._http) is not None:
            self._http = None  # who calls on opens another
            await http.aclose()

    async def __aenter__(self) -> MCPClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(
        self, use: Callable[[Client], Awaitable[T]], seconds: float, identity: CallIdentity, *, repeatable: bool
    ) -> T:
        """The result of `use` with a connected client, which is retried once where that is safe. Raises: MCPFailure."""
        safe = {Fault.SESSION_GONE, Fault.LOST} if repeatable else {Fault.SESSION_GONE}
        self.running += 1
        try:
            try:
                result = await self._attempt(use, seconds, identity)
            except MCPFailure as failure:
                if failure.fault not in safe:
                    raise
                result = await self._attempt(use, seconds, identity)
        except MCPFailure as failure:
            if failure.fault is not Fault.REFUSED:
                self.failure = failure
            if failure.status == 401 and identity.refused is not None:
                raise await identity.refused() from failure
            raise
        finally:
            self.running -= 1
        self.failure = None
        return result

    async def _attempt(self, use: Callable[[Client], Awaitable[T]], seconds: float, identity: CallIdentity) -> T:
        statuses: list[int] = []
        CALL_HEADERS.set(identity.headers)
        CALL_STATUSES.set(statuses)
        session = False
        try:
            async with self._slots.place():
                await sdk_loaded()
                async with asyncio.timeout(seconds + GRACE):
                    modern = await self._modern(identity) if self._program is None else None
                    session = not modern
                    # A session with the caller's own key must not be lent to others.
                    if self._program is None and (modern or identity.own):
                        async with self._client(modern or "legacy", identity) as client:
                            return await use(client)
                    async with self._session.borrowed() as client:
                        return await use(client)
        except MCPFailure:
            raise
        except BaseException as error:
            failure = failure_of(error, self.name, seconds, statuses, session=session)
            if failure is None:
                if isinstance(error, Exception):  # the SDK raises anything when it is stopped
                    raise asyncio.CancelledError from error
                raise
            if failure.fault not in KEEP_ERA:
                self._version = None  # the next server at this address may be another one
            raise failure from error

    async def _modern(self, identity: CallIdentity) -> str | None:
        """The version of the newer protocol, if the server speaks one; it is asked once."""
        if self._version is None:
            async with self._probing:
                if self._version is None:
                    async with asyncio.timeout(self._probe_seconds), self._client("auto", identity) as client:
                        self._version, self._discovered = client.protocol_version, client.session.discover_result
        return self._version if is_modern(self._version) else None

    def _client(self, mode: str, identity: CallIdentity) -> AbstractAsyncContextManager[Client]:
        from mcp.client.streamable_http import streamable_http_client

        if self._http is None:
            self._http = http_client(self.url, self._headers, hooks=CALL_HOOKS)
        transport = streamable_http_client(self.url, http_client=self._http, max_sse_event_size=MAX_EVENT_BYTES)
        return self._over(transport, mode, identity)

    def _over(self, transport: Any, mode: str, identity: CallIdentity) -> AbstractAsyncContextManager[Client]:
        import mcp.types as wire
        from mcp import Client
        from mcp.client.caching import CacheConfig, InMemoryResponseCacheStore

        if self._lists is None:
            self._lists = InMemoryResponseCacheStore()
        partition = sha256(identity.partition.encode()).hexdigest()
        cache = CacheConfig(self._lists, partition=partition, target_id=self.url)
        known = self._discovered if is_modern(mode) else None

        async def noted(message: object) -> None:
            self.changes += str(getattr(message, "method", "")).endswith("/list_changed")

        async def refuse(context: object, params: object) -> wire.ErrorData:
            return wire.ErrorData(code=wire.METHOD_NOT_FOUND, message=OLDER)

        return Client(
            _bounded(transport),
            mode=mode,
            cache=cache,
            prior_discover=known,
            message_handler=noted,
            elicitation_callback=refuse,
        )


async def _unchecked(name: str, result: object) -> None:
    """The SDK would check a result here, in the event loop, with the server's own patterns."""


@asynccontextmanager
async def _bounded(transport: Any) -> AsyncGenerator[tuple[Any, Any]]:
    async with transport as (read, write):
        yield BoundedStream(read), write
