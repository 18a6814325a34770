"""The interpreter server, or any of several behind one address: its calls, its files, its state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ValidationError

from task.errors import ToolError
from task.tools.mcp.connection import CONVERSATION, PRINCIPAL, CallIdentity, http_client
from task.tools.mcp.mcp_client import MCPClient, Progress
from task.tools.mcp.results import Fault, MCPFailure, MCPFile, MCPResult
from task.tools.py_interpreter.execution import UNKNOWN, ProducedFile, SessionMemo

if TYPE_CHECKING:
    import httpx2

AFFINITY = "X-Session-Affinity"
HEALTH_SECONDS = 8.0  # a balancer may try a frozen server first
TRANSFER_SECONDS = 60.0
ROUTES = 32
GATEWAY_FAILED = (502, 504)
READY = "ready"  # the status of a server that takes calls
BROKE_OFF = (
    "The connection to the Python interpreter broke off: the code may or may not have run. Call it again if it is "
    "still needed; if its server is gone, another one continues with the conversation's files, and says that "
    "variables are lost."
)
CALLS_AT_ONCE = 64  # the servers have lines of their own, which show their places


class ServersAway(ToolError):
    """No server is behind the address now; the call was not sent."""


class _Health(BaseModel):
    sandbox_tier: str


class _ServerReady(BaseModel):
    server: str
    status: str
    only_at: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """How a conversation's requests find their server; `fresh`: its session is gone, a new one may be made.

    Each `route` of a conversation may lead to another server.
    """

    session: Mapping[str, str]
    route: int = 0
    fresh: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """The header by which a balancer chooses the server."""
        named = f"{self.session.get(PRINCIPAL, '')}\n{self.session.get(CONVERSATION, '')}"
        value = sha256(named.encode()).hexdigest()[:32]
        return {AFFINITY: f"{value}-{self.route}" if self.route else value}


class InterpreterServer:
    """The server at `url`; nothing is sent before the first call. Every method raises `ToolError` when it fails."""

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        self._mcp = MCPClient(url, token=token, timeout=seconds, name="the Python interpreter", parallel=CALLS_AT_ONCE)
        parts = urlsplit(url)
        self._address = parts.netloc
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._direct = ""  # the name of the server that is at the address itself, with no balancer in between
        self.is_ours = bool(token)  # only our own servers are called with one
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: httpx2.AsyncClient | None = None

    async def way(self, way: Way, memo: SessionMemo, refusal: str = "") -> Way:
        """The way to the server that has the conversation's session, or to one where a `fresh` session may be made.

        A request that is safe to repeat comes first: it shows that a server drains, and makes a balancer notice that
        one is frozen. Without a balancer, nothing is asked about a session until its server has refused a call;
        `refusal` is the reason.

        Raises:
            ServersAway: a balancer has no server that answers.
        """
        if not refusal and memo.kernel and memo.server == self._direct:
            return way
        found = await self._ready_at(way) if self.is_ours else None
        self._direct = found.server if found is not None and found.only_at == self._address else ""
        if found is None or (found.status == READY and (not memo.kernel or found.server == memo.server)):
            return replace(way, fresh=refusal == UNKNOWN)
        ways = [Way(way.session, route) for route in range(ROUTES)]
        answers = zip(ways, await asyncio.gather(*map(self._ready_at, ways)), strict=True)
        ready = [(other, answer.server) for other, answer in answers if answer is not None and answer.status == READY]
        for other, server in ready if memo.kernel else ():
            if server == memo.server:
                return other
        others = [way] if found.status == READY else [other for other, _ in ready]
        return replace(others[0], fresh=True) if others else way

    async def _ready_at(self, way: Way) -> _ServerReady | None:
        import httpx2

        try:
            answer = await self._client().get(f"{self._origin}/ready", headers=way.headers, timeout=HEALTH_SECONDS)
            if answer.status_code in GATEWAY_FAILED:
                raise ServersAway("No Python interpreter answers at the moment. Nothing was run.")
            return _ServerReady.model_validate_json(answer.content) if answer.status_code in (200, 503) else None
        except (httpx2.HTTPError, ValidationError):
            return None  # the call itself reports what is wrong

    async def call(self, name: str, code: str, meta: Mapping[str, Any], way: Way, on_progress: Progress) -> MCPResult:
        identity = CallIdentity(way.headers)
        try:
            return await self._mcp.call(name, {"code": code}, meta=meta, on_progress=on_progress, identity=identity)
        except MCPFailure as failure:
            if failure.fault is not Fault.LOST:
                raise
            raise MCPFailure(failure.fault, failure.server, BROKE_OFF) from failure

    async def put(self, path: str, name: str, version: str, content: bytes, way: Way) -> None:
        """Place a file into the session's working directory, through the address that begins with `path`."""
        params = {"version": version}
        await self._request("PUT", f"{path}{quote(name)}", params=params, content=content, headers=way.headers)

    async def get(self, file: ProducedFile, files_path: str, way: Way) -> bytes:
        """The content of a file that the session has produced."""
        if file.content is not None:
            return file.content
        return await self._request("GET", f"{files_path}{file.path}", headers=way.headers)

    async def read(self, file: MCPFile, max_bytes: int) -> bytes:
        """The content of a file in the result of a server of another kind."""
        if file.content is not None or file.uri is None:
            return file.content or b""
        found = await self._mcp.read(file.uri, max_bytes=max_bytes)
        return b"".join(item.content or b"" for item in found)

    async def sandbox_tier(self) -> str | None:
        """How the server confines code, as it reports itself; None if it is of another kind.

        Raises:
            ToolError: nothing answers at its address.
        """
        import httpx2

        try:
            answer = await self._client().get(f"{self._origin}/health", timeout=HEALTH_SECONDS)
            return _Health.model_validate_json(answer.content).sandbox_tier if answer.status_code == 200 else None
        except httpx2.ConnectError as error:
            raise ToolError("The Python interpreter cannot be reached.") from error
        except (httpx2.HTTPError, ValidationError):
            return None

    async def close(self) -> None:
        await self._mcp.close()
        if self._http is not None:
            await self._http.aclose()

    async def _request(self, method: str, path: str, **rest: Any) -> bytes:
        import httpx2

        if not path.startswith("/sessions/"):  # the token is sent to this server only
            raise ToolError("The Python interpreter named a place for files that is not its own.")
        try:
            response = await self._client().request(method, f"{self._origin}{path}", **rest)
        except httpx2.HTTPError as error:
            raise ToolError("The Python interpreter broke off while a file was sent. Try again.") from error
        if response.status_code != 200:
            raise ToolError(f"The Python interpreter refused a file (status {response.status_code}).")
        return response.content

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = http_client(self._origin, self._headers, connections=None, seconds=TRANSFER_SECONDS)
        return self._http
