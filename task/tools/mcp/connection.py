"""Connections to one MCP server and what it learns about the caller: a client per call, or one owned session."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from task.llm.dial import core_headers
from task.llm.transport import KEEP_ALIVE_SECONDS, no_cookies
from task.telemetry.operations import join_trace
from task.tools.mcp.owned_session import Ended, OwnedSession
from task.tools.mcp.results import Fault, MCPFailure, failure_of
from task.tools.mcp.stdio import ENDING_SECONDS, START_SECONDS, LocalProgram, connected
from task.tools.models import Caller

if TYPE_CHECKING:
    import httpx2
    from mcp import Client

    from task.tools.mcp.lists import CallableTools

T = TypeVar("T")
Use = Callable[["Client"], Awaitable[T]]

MAX_EVENT_BYTES = 16 * 2**20
CONNECT_SECONDS = 5.0
PROBE_SECONDS = 5.0
GRACE = 2.0  # in which the SDK may report its own time-out before ours ends the call
KEEP_ERA = frozenset({Fault.TIMEOUT, Fault.REFUSED, Fault.TOO_LARGE})
CONNECTIONS = 64

_headers: ContextVar[Mapping[str, str]] = ContextVar("mcp_headers")
_statuses: ContextVar[list[int]] = ContextVar("mcp_statuses")
META_DOMAIN = "dial-general-purpose-agent"
CONVERSATION = f"{META_DOMAIN}/conversation_id"
PRINCIPAL = f"{META_DOMAIN}/principal"
_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})


class ServerConnection:
    """Calls one server in either protocol; failed calls raise `MCPFailure`."""

    def __init__(
        self,
        url: str,
        server: str,
        headers: Mapping[str, str],
        parallel: int,
        probe_seconds: float,
        program: LocalProgram | None = None,
    ) -> None:
        self._url = url
        self._server = server
        self._fixed = dict(headers)
        self._slots = asyncio.Semaphore(parallel)
        self._probing = asyncio.Lock()
        self._probe_seconds = probe_seconds
        self._version: str | None = None
        self._http: httpx2.AsyncClient | None = None
        self._lists: CallableTools | None = None
        self._program = program
        if program is None:
            self._session = OwnedSession(lambda _ended: self._client("legacy", SERVICE), probe_seconds)
        else:
            self._session = OwnedSession(partial(self._started, program), START_SECONDS, ENDING_SECONDS)

    async def run(self, use: Use[T], seconds: float, identity: Identity, *, repeatable: bool) -> T:
        """The result of `use` with a connected client, which is retried once where that is safe.

        Raises:
            MCPFailure: the server did not answer.
        """
        try:
            return await self._attempt(use, seconds, identity)
        except MCPFailure as failure:
            if failure.fault is not Fault.SESSION_GONE and not (failure.fault is Fault.LOST and repeatable):
                raise
        return await self._attempt(use, seconds, identity)

    async def close(self) -> None:
        await self._session.close()
        if self._http is not None:
            await self._http.aclose()

    async def _attempt(self, use: Use[T], seconds: float, identity: Identity) -> T:
        statuses: list[int] = []
        _headers.set(identity.headers)
        _statuses.set(statuses)
        session = False
        try:
            async with self._slots:
                await sdk_loaded()
                async with asyncio.timeout(seconds + GRACE):
                    modern = await self._modern(identity) if self._program is None else None
                    session = not modern
                    return await self._used(use, modern, identity)
        except MCPFailure:
            raise
        except BaseException as error:
            failure = failure_of(error, self._server, seconds, statuses, session=session)
            if failure is None and isinstance(error, Exception):  # the SDK raises anything when it is stopped
                raise asyncio.CancelledError from error
            if failure is None:
                raise
            if failure.fault not in KEEP_ERA:
                self._version = None  # the next server at this address may be another one
            raise failure from error

    async def _used(self, use: Use[T], modern: str | None, identity: Identity) -> T:
        if self._program is None and (modern or identity.own):
            async with self._client(modern or "legacy", identity) as client:
                return await use(client)
        async with self._session.borrowed() as client:
            return await use(client)

    async def _modern(self, identity: Identity) -> str | None:
        if self._version is None:
            async with self._probing:
                if self._version is None:
                    self._version = await self._probe(identity)
        return self._version if is_modern(self._version) else None

    async def _probe(self, identity: Identity) -> str:
        async with asyncio.timeout(self._probe_seconds), self._client("auto", identity) as client:
            return client.protocol_version

    def _client(self, mode: str, identity: Identity) -> AbstractAsyncContextManager[Client]:
        from mcp.client.streamable_http import streamable_http_client

        if self._http is None:
            self._http = _http_client(self._url, self._fixed)
        transport = streamable_http_client(self._url, http_client=self._http, max_sse_event_size=MAX_EVENT_BYTES)
        return self._over(transport, mode, identity)

    def _started(self, program: LocalProgram, ended: Ended) -> AbstractAsyncContextManager[Client]:
        return connected(program, self._server, lambda transport: self._over(transport, "auto", SERVICE), ended)

    def _over(self, transport: Any, mode: str, identity: Identity) -> AbstractAsyncContextManager[Client]:
        from mcp import Client
        from mcp.client.caching import CacheConfig

        from task.tools.mcp.lists import CallableTools

        if self._lists is None:
            self._lists = CallableTools()
        partition = sha256(identity.partition.encode()).hexdigest()
        return Client(
            transport, mode=mode, cache=CacheConfig(self._lists, partition=partition, target_id=self._url)
        )  # fmt: skip


def is_modern(version: str) -> bool:
    """Whether servers of this protocol version keep no session."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return version in MODERN_PROTOCOL_VERSIONS


def _http_client(url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    import httpx2

    async def add_headers(request: httpx2.Request) -> None:
        request.headers.update(_headers.get({}))
        join_trace(request.headers)

    async def remember_status(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            _statuses.get([]).append(response.status_code)

    return httpx2.AsyncClient(
        headers=dict(headers),
        verify=url.startswith("https:"),  # a TLS context costs 40 ms, and plain HTTP needs none
        trust_env=False,
        cookies=no_cookies(),
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),  # every call has its own limit
        limits=httpx2.Limits(max_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE_SECONDS),
        event_hooks={"request": [add_headers], "response": [remember_status]},
    )


async def sdk_loaded() -> None:
    """Import the SDK in a thread: it takes most of a second, in which other requests must not wait."""
    # Until another thread has imported all of it (`__all__` is its last name), a second import can fail.
    if not hasattr(sys.modules.get("mcp"), "__all__"):
        await asyncio.to_thread(import_module, "mcp")


@dataclass(frozen=True, slots=True)
class Identity:
    """Headers of one request, and the `partition` within which lists of tools are shared."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    partition: str = "service"
    own: bool = False  # the headers contain a person's own key: nothing made with them may be shared


SERVICE = Identity()


async def identity_of(caller: Caller | None, *, forward_key: bool) -> Identity:
    """The trace headers, and for a server that is trusted with them also key and other headers."""
    if caller is None:
        return SERVICE
    if not forward_key:
        return Identity({name: value for name, value in caller.headers.items() if name.lower() in _TRACE_HEADERS})
    return Identity({**caller.headers, **core_headers(caller.api_key)}, await caller.principal(), own=True)


def conversation_meta(conversation_id: str, principal: str) -> dict[str, str]:
    """The `_meta` of a call: digests that stay the same for one conversation of one person.

    A conversation's id may contain its title and its owner's bucket.
    """
    values = {CONVERSATION: conversation_id, PRINCIPAL: principal}
    return {key: sha256(f"{key}\n{value}".encode()).hexdigest()[:32] for key, value in values.items() if value}
