"""Who makes local Core's pictures: the images API of an upstream, or a drawer of labelled placeholders."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import orjson

from task.local_core.models import ModelChoice, UpstreamModel
from task.local_core.refusal import Refusal

PLACEHOLDER_TEXT = "This is a placeholder, not a generated picture: no image model is connected to local Core."
UPSTREAM_SECONDS = 300
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


@dataclass(frozen=True, slots=True)
class Picture:
    """What a painter made: the file's content or, from some upstreams, only a link to it."""

    content: bytes | None
    link: str | None = None
    revised_prompt: str | None = None
    text: str = ""


class Painter(Protocol):
    """Makes a picture; `wishes` may hold size, quality and style. Raises: Refusal."""

    async def paint(self, prompt: str, wishes: Mapping[str, str]) -> Picture: ...


def painter_of(choice: ModelChoice, name: str) -> Painter:
    if isinstance(choice, UpstreamModel):
        return UpstreamPainter(choice.base_url, name, choice.api_key)
    return PlaceholderPainter()


class PlaceholderPainter:
    """Draws the prompt's words under a notice."""

    async def paint(self, prompt: str, wishes: Mapping[str, str]) -> Picture:
        from task.local_core.placeholder import drawn

        content = await asyncio.to_thread(drawn, prompt, wishes.get("size"))
        return Picture(content, revised_prompt=f"A placeholder with the words: {prompt}", text=PLACEHOLDER_TEXT)


@dataclass(frozen=True, slots=True)
class UpstreamPainter:
    """Asks the images API of an OpenAI-compatible server."""

    base_url: str
    model: str
    api_key: str | None = None

    async def paint(self, prompt: str, wishes: Mapping[str, str]) -> Picture:
        body = {"model": self.model, "prompt": prompt, "n": 1, **wishes}
        if self.model.startswith("dall-e"):
            body["response_format"] = "b64_json"  # later models know no other and refuse the field
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        limit = aiohttp.ClientTimeout(total=UPSTREAM_SECONDS, sock_connect=10)
        url = f"{self.base_url.rstrip('/')}/images/generations"
        try:
            async with (
                aiohttp.ClientSession(timeout=limit, headers=headers) as session,
                session.post(url, json=body, allow_redirects=False) as answer,
            ):
                return _picture(answer.status, await answer.read())
        except aiohttp.ClientError:
            raise Refusal(502, error_of("Failed to connect to the image model", "502")) from None
        except TimeoutError:
            raise Refusal(500, error_of("The image model took too long", "timeout")) from None


def _picture(status: int, body: bytes) -> Picture:
    try:
        document: Any = orjson.loads(body)
        if status == 200:
            made = document["data"][0]
            content = base64.b64decode(made["b64_json"], validate=True) if made.get("b64_json") else None
            if content is None and not isinstance(made.get("url"), str):
                raise Refusal(500, error_of("The image model answered without a picture", "500"))
            return Picture(content, made.get("url"), made.get("revised_prompt"))
        error: Any = document["error"]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, binascii.Error):
        error = None
    raise _refusal(status, error)


def _refusal(status: int, error: Any) -> Refusal:
    """As a deployment's failure reaches a caller of Core, which keeps some statuses to itself."""
    if status in (429, 502, 503, 504):
        return Refusal(503, "Service is not available")
    if status in (404, 405, 501):
        return Refusal(404, error_of("The connected model provider makes no pictures", "404"))
    told = error if isinstance(error, dict) else error_of("The image model failed", "500")
    return Refusal(status if 400 <= status < 500 else 500, told)


def kind_of(content: bytes) -> str:
    kind = next((kind for magic, kind in _MAGIC.items() if content.startswith(magic)), None)
    if kind is None:
        raise Refusal(500, error_of("The image model answered with something that is no picture", "500"))
    return kind


def error_of(message: str, code: str) -> dict[str, Any]:
    return {"message": message, "type": "runtime_error", "code": code}
