"""Ask DIAL Core as a program does: one streamed answer, the deployments, and whether Core reaches one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from task.errors import AgentError
from task.llm.chat_chunks import SseReader

# An answer may take long and be quiet between heartbeats, so that only silence is bounded.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=300)


class Unreachable(AgentError):
    """Nothing answers at Core's address, or nothing behind it."""


class CoreError(AgentError):
    """Core refused the request; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class CoreClient:
    """Requests to one Core with one key, each over a connection of its own.

    Raises:
        Unreachable: by every method, when nothing answers or the connection breaks.
        CoreError: by every method, when Core answers with an error.
    """

    endpoint: str
    api_key: str
    timeout: aiohttp.ClientTimeout = TIMEOUT

    async def bucket(self) -> str:
        """The id of the key's own bucket."""
        return str((await self._json("/v1/bucket"))["bucket"])

    async def ask(
        self, deployment: str, messages: Sequence[Mapping[str, Any]], conversation: str
    ) -> AsyncGenerator[bytes]:
        """The payloads of the streamed answer to the last message."""
        body = orjson.dumps({"messages": list(messages), "stream": True})
        path = f"/openai/deployments/{quote(deployment, safe='')}/chat/completions"
        async with self._response("POST", path, body, {"X-CONVERSATION-ID": conversation}) as response:
            reader = SseReader()
            async for piece in response.content.iter_any():
                for payload in reader.feed(piece):
                    yield payload
            for payload in reader.close():
                yield payload

    async def deployments(self) -> list[str]:
        """The ids of the applications and models that the key may use."""
        listings = [await self._json(f"/openai/{kind}") for kind in ("applications", "models")]
        return [str(item["id"]) for listing in listings for item in listing["data"]]

    async def reaches(self, deployment: str) -> bool | None:
        """Whether Core gets an answer at the address that its configuration has for the deployment; None: not tried."""
        try:
            async with self._response("GET", f"/v1/deployments/{quote(deployment, safe='')}/configuration") as response:
                return bool(await response.content.read(1)) or None  # Core's own answer is empty, or 404
        except CoreError as error:
            return None if error.status == 404 else error.status < 500

    async def _json(self, path: str) -> Any:
        async with self._response("GET", path) as response:
            try:
                return orjson.loads(await response.read())
            except orjson.JSONDecodeError as error:
                raise CoreError(f"{self.endpoint} answers, but not as DIAL Core does", 200) from error

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, body: bytes | None = None, more: Mapping[str, str] | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        url = URL(f"{self.endpoint.rstrip('/')}{path}", encoded=True)
        headers = {"Api-Key": self.api_key, "Content-Type": "application/json", **(more or {})}
        try:
            async with (
                aiohttp.ClientSession(timeout=self.timeout) as session,
                session.request(method, url, headers=headers, data=body, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    text = (await response.content.read(100_000)).decode("utf-8", "replace")
                    raise CoreError(_error_text(text) or f"HTTP status {response.status}", response.status)
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{self.endpoint} does not answer ({type(error).__name__})") from error


def _error_text(text: str) -> str:
    try:
        content: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return " ".join(text.split())[:500]
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return str(error)[:500]
    return str(error.get("display_message") or error.get("message") or "")[:2000]
