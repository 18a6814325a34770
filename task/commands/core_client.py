"""Talk to DIAL Core as a program does: upload, ask and stream, download."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote
from uuid import uuid4

import aiohttp
import orjson
from yarl import URL

from task.conversation.messages import Attachment
from task.errors import AgentError
from task.llm.sse import SseReader

# An answer may take long and be quiet between heartbeats, so that only silence is bounded.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=300)


class Unreachable(AgentError):
    """Nothing answers at Core's address, or nothing behind it."""


class Refused(AgentError):
    """Core answered and said no; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CoreClient:
    """Calls of one Core with one key, over a session that its owner closes."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str, api_key: str) -> None:
        self._session = session
        self.endpoint = endpoint.rstrip("/")
        self._headers = {"Api-Key": api_key}

    async def bucket(self) -> str:
        """The id of the key's own bucket."""
        return str((await self._json("GET", "/v1/bucket"))["bucket"])

    async def upload(self, path: Path, folder: str) -> Attachment:
        """Store a file at `files/{bucket}/{folder}/{name}`; the attachment that names it."""
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        with path.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("file", file, filename=path.name, content_type=kind)
            stored = await self._json("PUT", f"/v1/files/{folder}/{quote(path.name, safe='')}", data=form)
        return Attachment(type=kind, title=path.name, url=str(stored["url"]))

    async def ask(
        self, deployment: str, messages: Sequence[Mapping[str, Any]], conversation: str
    ) -> AsyncIterator[bytes]:
        """The payloads of the streamed answer to the last message.

        Raises:
            Unreachable: nothing answers, or the connection breaks.
            Refused: an error instead of an answer.
        """
        body = orjson.dumps({"messages": list(messages), "stream": True})
        headers = {"Content-Type": "application/json", "X-CONVERSATION-ID": conversation}
        path = f"/openai/deployments/{quote(deployment, safe='')}/chat/completions"
        try:
            async with self._request("POST", path, data=body, headers=headers) as response:
                await _check(response)
                reader = SseReader()
                async for piece in response.content.iter_any():
                    for payload in reader.feed(piece):
                        yield payload
                for payload in reader.close():
                    yield payload
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{self.endpoint} does not answer ({type(error).__name__})") from error

    async def download(self, url: str, target: Path) -> None:
        """Write the file at a relative `files/...` URL to `target`, which must not exist: all of it, or nothing."""
        try:
            async with self._request("GET", f"/v1/{url}") as response:
                await _check(response)
                with _whole(target) as file:
                    async for piece in response.content.iter_any():
                        file.write(piece)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{self.endpoint} does not answer ({type(error).__name__})") from error

    async def deployments(self) -> list[str]:
        """The ids of the models and applications that the key may use."""
        models, applications = (
            await self._json("GET", "/openai/models"),
            await self._json("GET", "/openai/applications"),
        )
        return [str(item["id"]) for listing in (applications, models) for item in listing["data"]]

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        try:
            async with self._request(method, path, **options) as response:
                await _check(response)
                return orjson.loads(await response.read())
        except orjson.JSONDecodeError as error:
            raise Refused(f"{self.endpoint} answers, but not as DIAL Core does", 200) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{self.endpoint} does not answer ({type(error).__name__})") from error

    def _request(self, method: str, path: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
        url = URL(f"{self.endpoint}{path}", encoded=True)
        merged = {**self._headers, **(headers or {})}
        return self._session.request(method, url, headers=merged, allow_redirects=False, **options)


def own_folder(bucket: str) -> str:
    """A folder of the bucket that no other question uses."""
    return f"{bucket}/ask/{uuid4().hex[:12]}"


@contextmanager
def _whole(target: Path) -> Generator[BinaryIO]:
    """The new file, which is removed again when its content does not come to the end."""
    with target.open("xb") as file:
        try:
            yield file
        except BaseException:
            target.unlink()
            raise


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    text = (await response.content.read(100_000)).decode("utf-8", "replace")
    raise Refused(error_text(text) or f"HTTP status {response.status}", response.status)


def error_text(text: str) -> str:
    """The sentence in an error body: `display_message`, else `message`, else the plain text itself."""
    try:
        content: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return " ".join(text.split())[:500]
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return str(error)[:500]
    return str(error.get("display_message") or error.get("message") or "")[:2000]
