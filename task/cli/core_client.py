"""Talk to DIAL Core as a program does: upload, ask and stream, download."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from task.conversation.messages import Attachment
from task.errors import AgentError
from task.llm.chat_chunks import SseReader

# An answer may take long and be quiet between heartbeats, so that only silence is bounded.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=300)


class Unreachable(AgentError):
    """Nothing answers at Core's address, or nothing behind it."""


class CoreError(AgentError):
    """Core answered and said no; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CoreClient:
    """Calls of one Core with one key, over a session that its owner closes.

    Raises:
        Unreachable: by every method, when nothing answers or the connection breaks.
        CoreError: by every method, when Core answers with an error.
    """

    def __init__(self, session: aiohttp.ClientSession, endpoint: str, api_key: str) -> None:
        self._session = session
        self._endpoint = endpoint.rstrip("/")
        self._headers = {"Api-Key": api_key}

    async def bucket(self) -> str:
        """The id of the key's own bucket."""
        return str((await self._json("GET", "/v1/bucket"))["bucket"])

    async def upload(self, path: Path, folder: str) -> Attachment:
        """Store a file at `files/{folder}/{name}`; the attachment that names it."""
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        with path.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("file", file, filename=path.name, content_type=kind)
            stored = await self._json("PUT", f"/v1/files/{folder}/{quote(path.name, safe='')}", data=form)
        return Attachment(type=kind, title=path.name, url=str(stored["url"]))

    async def ask(
        self, deployment: str, messages: Sequence[Mapping[str, Any]], conversation: str
    ) -> AsyncIterator[bytes]:
        """The payloads of the streamed answer to the last message."""
        body = orjson.dumps({"messages": list(messages), "stream": True})
        headers = {"Content-Type": "application/json", "X-CONVERSATION-ID": conversation}
        path = f"/openai/deployments/{quote(deployment, safe='')}/chat/completions"
        async with self._answer("POST", path, data=body, headers=headers) as response:
            reader = SseReader()
            async for piece in response.content.iter_any():
                for payload in reader.feed(piece):
                    yield payload
            for payload in reader.close():
                yield payload

    async def download(self, url: str, target: Path) -> None:
        """Write the file at a relative `files/...` URL to `target`, which must not exist: all of it, or nothing."""
        async with self._answer("GET", f"/v1/{url}") as response:
            with _whole(target) as file:
                async for piece in response.content.iter_any():
                    file.write(piece)

    async def deployments(self) -> list[str]:
        """The ids of the applications and models that the key may use."""
        listings = [await self._json("GET", f"/openai/{kind}") for kind in ("applications", "models")]
        return [str(item["id"]) for listing in listings for item in listing["data"]]

    async def reaches(self, deployment: str) -> bool | None:
        """Whether Core gets an answer at the address that its configuration has for the deployment; None: not tried."""
        try:
            async with self._answer("GET", f"/v1/deployments/{quote(deployment, safe='')}/configuration") as response:
                return bool(await response.content.read(1)) or None  # Core's own answer is empty, or 404
        except CoreError as error:
            return None if error.status == 404 else error.status < 500

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        async with self._answer(method, path, **options) as response:
            try:
                return orjson.loads(await response.read())
            except orjson.JSONDecodeError as error:
                raise CoreError(f"{self._endpoint} answers, but not as DIAL Core does", 200) from error

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **options: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        url, headers = URL(f"{self._endpoint}{path}", encoded=True), {**self._headers, **(headers or {})}
        try:
            async with self._session.request(
                method, url, headers=headers, allow_redirects=False, **options
            ) as response:
                if response.status != 200:
                    text = (await response.content.read(100_000)).decode("utf-8", "replace")
                    raise CoreError(_error_text(text) or f"HTTP status {response.status}", response.status)
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{self._endpoint} does not answer ({type(error).__name__})") from error


@contextmanager
def _whole(target: Path) -> Generator[BinaryIO]:
    with target.open("xb") as file:
        try:
            yield file
        except BaseException:
            target.unlink()
            raise


def _error_text(text: str) -> str:
    try:
        content: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return " ".join(text.split())[:500]
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return str(error)[:500]
    return str(error.get("display_message") or error.get("message") or "")[:2000]
