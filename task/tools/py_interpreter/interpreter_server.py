"""One interpreter server: code over MCP, files beside it over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from task.errors import ToolError
from task.tools.mcp.mcp_client import MCPClient, Progress
from task.tools.mcp.results import MCPFile, MCPResult

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 5.0
TRANSFER_SECONDS = 60.0


class InterpreterServer:
    """The server at `url`; nothing is sent before the first call. Every method raises `ToolError` when it fails."""

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        self._mcp = MCPClient(url, token=token, timeout=seconds, name="the Python interpreter")
        parts = urlsplit(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: httpx.AsyncClient | None = None

    async def call(self, name: str, code: str, meta: Mapping[str, Any], on_progress: Progress) -> MCPResult:
        return await self._mcp.call(name, {"code": code}, meta=meta, on_progress=on_progress)

    async def put(self, files_path: str, name: str, version: str, content: bytes) -> None:
        """Place a file into the session's working directory."""
        path = f"{files_path}inputs/{quote(name, safe='')}"
        await self._request("PUT", path, params={"version": version}, content=content)

    async def get(self, files_path: str, path: str) -> bytes:
        """The content of a file that the session has produced."""
        return await self._request("GET", f"{files_path}{path}")

    async def read(self, file: MCPFile, max_bytes: int) -> bytes:
        """The content of a file in the result of a server of another kind."""
        if file.content is not None or file.uri is None:
            return file.content or b""
        found = await self._mcp.read(file.uri, max_bytes=max_bytes)
        return b"".join(item.content or b"" for item in found)

    async def close(self) -> None:
        await self._mcp.close()
        if self._http is not None:
            await self._http.aclose()

    async def _request(self, method: str, path: str, **rest: Any) -> bytes:
        import httpx

        if not path.startswith("/sessions/"):  # the token is sent to this server only
            raise ToolError("The Python interpreter named a place for files that is not its own.")
        try:
            response = await self._client().request(method, f"{self._origin}{path}", **rest)
        except httpx.HTTPError as error:
            raise ToolError("The Python interpreter broke off while a file was sent. Try again.") from error
        if response.status_code != 200:
            raise ToolError(f"The Python interpreter refused a file (status {response.status_code}).")
        return response.content

    def _client(self) -> httpx.AsyncClient:
        import httpx

        if self._http is None:
            timeout = httpx.Timeout(TRANSFER_SECONDS, connect=CONNECT_SECONDS)
            secure = self._origin.startswith("https:")
            self._http = httpx.AsyncClient(headers=self._headers, timeout=timeout, trust_env=False, verify=secure)
        return self._http
