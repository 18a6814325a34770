"""What a client of an MCP server is made of: sessions, HTTP, local programs, the identity of a caller."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TextIO, cast

from task.llm.dial import core_headers
from task.llm.transport import KEEP_ALIVE_SECONDS, no_cookies
from task.telemetry.operations import join_trace, leave_operation
from task.tools.mcp.results import Fault, MCPFailure, asked_to_stop
from task.tools.models import Caller
from task.utils.folders import delete

if TYPE_CHECKING:
    import httpx2
    from mcp import Client

Opening = Callable[[Callable[[], None]], AbstractAsyncContextManager["Client"]]  # gets what the server's end calls

CONNECT_SECONDS = 5.0
CONNECTIONS = 64
MAX_LIST_BYTES = 2**21  # of one page of a list
_LISTING = (b'"tools/list"', b'"resources/list"', b'"resources/templates/list"', b'"prompts/list"')
MAX_EVENT_BYTES = 16 * 2**20  # of one event of a stream, or of an answer without one
END_SECONDS = 2.0

CALL_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("mcp_headers")
CALL_STATUSES: ContextVar[list[int]] = ContextVar("mcp_statuses")
META_DOMAIN = "dial-general-purpose-agent"
CONVERSATION = f"{META_DOMAIN}/conversation_id"
PRINCIPAL = f"{META_DOMAIN}/principal"
_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})
START_SECONDS, LAST_WORDS_SECONDS = 60.0, 2.0
ENDING_SECONDS = 10.0  # the SDK closes the input, then asks, then kills
_LAST_WORDS = 2000
_SHOWN = 300


class _OpenedSession:
    """One opening of the session, by a task that owns it; after `retired` it ends with the last call that borrowed it.

    Only the task that entered the SDK's client may leave it.
    """

    def __init__(self, opening: Opening) -> None:
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.stop = asyncio.Event()
        self.borrowers = 0
        self.retired = False
        self.owner = asyncio.create_task(self._own(opening))

    def retire(self) -> None:
        self.retired = True
        if not self.borrowers:
            self.stop.set()

    async def _own(self, opening: Opening) -> None:
        leave_operation()  # the session outlives the run that opens it
        try:
            async with opening(self.retire) as client:
                self.client.set_result(client)
                await self.stop.wait()
        except BaseException as error:
            if not self.client.done():
                cause = error if isinstance(error, Exception) else ConnectionError("the session was not opened")
                self.client.set_exception(cause)
                self.client.exception()  # retrieved here, as no call may be waiting any more
            if asked_to_stop():
                raise


class OwnedSession:
    """Lends the client of one session of the older protocol, and replaces a lost session; `seconds` to open it."""

    def __init__(self, opening: Opening, seconds: float, end_seconds: float = END_SECONDS) -> None:
        self._opening = opening
        self._seconds = seconds
        self._end_seconds = end_seconds
        self._lock = asyncio.Lock()
        self._current: _OpenedSession | None = None
        self._owners: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def borrowed(self) -> AsyncGenerator[Client]:
        """The client for one call. A failed call retires the session: later calls open another."""
        async with self._lock:
            if self._current is None or self._current.retired or self._current.owner.done():
                opened = _OpenedSession(self._opening)
                self._owners.add(opened.owner)
                opened.owner.add_done_callback(self._owners.discard)
                try:
                    async with asyncio.timeout(self._seconds):
                        await asyncio.shield(opened.client)
                except BaseException:
                    opened.stop.set()
                    opened.owner.cancel()
                    raise
                self._current = opened
            session = self._current
        session.borrowers += 1
        try:
            yield session.client.result()
        except BaseException as error:
            session.retired |= not isinstance(error, asyncio.CancelledError) or not asked_to_stop()
            raise
        finally:
            session.borrowers -= 1
            if session.retired:
                session.retire()

    async def close(self) -> None:
        if self._current is not None:
            self._current.stop.set()
        if self._owners:
            _, late = await asyncio.wait(self._owners, timeout=self._end_seconds)
            for owner in late:
                owner.cancel()
                await asyncio.wait({owner}, timeout=self._end_seconds)


def is_modern(version: str) -> bool:
    """Whether servers of this protocol version keep no session."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return version in MODERN_PROTOCOL_VERSIONS


async def _add_headers(request: httpx2.Request) -> None:
    request.headers.update(CALL_HEADERS.get({}))
    join_trace(request.headers)


async def _remember_status(response: httpx2.Response) -> None:
    if response.status_code >= 400:
        CALL_STATUSES.get([]).append(response.status_code)


async def _bound_answer(response: httpx2.Response) -> None:
    # The SDK reads a list, and any answer that is not a stream, whole, which would hold the event loop for seconds.
    if any(method in response.request.content for method in _LISTING):
        bound(response, MAX_LIST_BYTES)
    elif "event-stream" not in response.headers.get("content-type", ""):
        bound(response, MAX_EVENT_BYTES)


def bound(response: httpx2.Response, most: int) -> None:
    """Let the body break off with a `ValueError` when it is longer than `most` bytes."""
    import httpx2

    class TooLong(httpx2.StreamError, ValueError):
        """The SDK ends this one request with it, and all of the connection with others."""

    whole = response.stream

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncGenerator[bytes]:
            left = 0 if "content-encoding" in response.headers else most  # none was asked for
            async for piece in cast("httpx2.AsyncByteStream", whole):
                if (left := left - len(piece)) < 0:
                    raise TooLong("the answer is too long")
                yield piece

        async def aclose(self) -> None:
            await cast("httpx2.AsyncByteStream", whole).aclose()

    response.stream = Bounded()


CALL_HOOKS = {"request": [_add_headers], "response": [_remember_status, _bound_answer]}


def http_client(
    url: str,
    headers: Mapping[str, str],
    *,
    connections: int | None = CONNECTIONS,
    seconds: float | None = None,
    hooks: Mapping[str, Any] | None = None,
) -> httpx2.AsyncClient:
    """A client that keeps no cookies; without `seconds` to read or write, every call has a limit of its own."""
    import httpx2

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        verify=url.startswith("https:"),  # a TLS context costs 40 ms, and plain HTTP needs none
        trust_env=False,
        cookies=no_cookies(),
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=seconds, write=seconds),
        limits=httpx2.Limits(max_connections=connections, keepalive_expiry=KEEP_ALIVE_SECONDS),
        event_hooks=hooks,
    )


async def sdk_loaded() -> None:
    """Import the SDK in a thread: it takes most of a second, in which other requests must not wait."""
    # Until another thread has imported all of it (`__all__` is its last name), a second import can fail.
    if not hasattr(sys.modules.get("mcp"), "__all__"):
        await asyncio.to_thread(import_module, "mcp")


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """Headers of one request, and the `partition` within which lists of tools are shared.

    `refused` makes of a 401 what it means for these headers.
    """

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    partition: str = "service"
    own: bool = False  # the headers contain a user's own key: nothing made with them may be shared
    refused: Callable[[], Awaitable[MCPFailure]] | None = None


SERVICE = CallIdentity()


async def identity_of(caller: Caller | None, *, forward_key: bool = False) -> CallIdentity:
    """The trace headers, and for a server that is trusted with them also key and other headers."""
    if caller is None:
        return SERVICE
    if not forward_key:
        return CallIdentity({name: value for name, value in caller.headers.items() if name.lower() in _TRACE_HEADERS})
    whose = f"{await caller.principal()}\n{caller.application}"  # whose key may list other tools than the user's
    return CallIdentity({**caller.headers, **core_headers(caller.api_key)}, whose, own=True)


def conversation_meta(conversation_id: str, principal: str) -> dict[str, str]:
    """The `_meta` of a call: digests that stay the same for one conversation of one user.

    A conversation's id may contain its title and its owner's bucket.
    """
    values = {CONVERSATION: conversation_id, PRINCIPAL: principal}
    return {key: sha256(f"{key}\n{value}".encode()).hexdigest()[:32] for key, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """A server's command line, and what the launcher allows it.

    `launcher` is the command of the launcher, `policy` its policy, to which a scratch folder is added as home and for
    temporary files; `secrets` are left out of what is reported.
    """

    argv: tuple[str, ...]
    launcher: tuple[str, ...]
    policy: Mapping[str, Any]
    secrets: tuple[str, ...] = ()


Connect = Callable[[Any], AbstractAsyncContextManager["Client"]]  # with a transport of the SDK


@asynccontextmanager
async def connected(
    program: LocalProgram, server: str, connect: Connect, ended: Callable[[], None]
) -> AsyncGenerator[Client]:
    """A client of the program, which lives as long as the context; `ended` is called when it ends by itself.

    Raises:
        MCPFailure: it cannot be started, with its own last words.
    """
    folder = Path(mkdtemp(prefix="dial-agent-mcp-"))
    words, tail, opened = asyncio.StreamReader(), b"", False

    async def listen() -> None:
        nonlocal tail
        while piece := await words.read(2**16):
            tail = (tail + piece)[-_LAST_WORDS:]
        ended()

    reader, writing = os.pipe()
    protocol, errors = asyncio.StreamReaderProtocol(words), os.fdopen(reader, "rb", 0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, errors)
    listening = asyncio.create_task(listen())
    try:
        with os.fdopen(writing, "w") as writer:
            async with connect(_transport(program, folder, writer)) as client:
                opened = True
                yield client
    except BaseException as error:
        if opened or asked_to_stop():
            raise
        await asyncio.wait({listening}, timeout=LAST_WORDS_SECONDS)
        lines = (" ".join(line.split()) for line in reversed(tail.decode(errors="replace").split("\n")))
        last = next(filter(None, lines), "it ended without a word")
        for secret in program.secrets:
            last = last.replace(secret, "***")
        reason = (
            f"The server {server} could not be started ({last[:_SHOWN]}). An operator has to check its command and "
            "what it may read, write and reach; tell the user, and answer without it."
        )
        raise MCPFailure(Fault.UNAVAILABLE, server, reason) from error
    finally:
        listening.cancel()
        transport.close()
        with suppress(OSError):
            delete(folder)


@asynccontextmanager
async def _transport(program: LocalProgram, folder: Path, writer: TextIO) -> AsyncGenerator[Any]:
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    scratch, file = folder / "scratch", folder / "policy.json"
    scratch.mkdir()
    policy: dict[str, Any] = {"workdir": str(scratch), **program.policy}
    policy["read_write"] = [*policy.get("read_write", ()), str(scratch)]
    policy["environment"] = {"HOME": str(scratch), "TMPDIR": str(scratch), **policy.get("environment", {})}
    file.write_text(json.dumps(policy))  # not among the arguments, which every user of the machine may read
    command, *arguments = program.launcher
    arguments += ["--policy", str(file), "--", *program.argv]
    parameters = StdioServerParameters(command=command, args=arguments, env={"LC_ALL": "C.UTF-8"})
    async with stdio_client(parameters, writer) as streams:
        writer.close()  # only the program has it now, so that its end is noticed
        yield streams
