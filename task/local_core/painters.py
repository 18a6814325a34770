"""What makes local Core's pictures: the images API of an upstream, or a painter of labelled placeholders."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import orjson

from task.local_core.models import ModelChoice, UpstreamModel
from task.local_core.responses import Refusal

PLACEHOLDER_TEXT = "This is a placeholder, not a generated picture: no image model is connected to local Core."
UPSTREAM_SECONDS = 300
NOTICE = "placeholder - no image model is connected"
SIDE = 1024
_SMALLEST, _LARGEST = 128, 2048
_SIZE = re.compile(r"(\d{2,4})x(\d{2,4})")
_PROMPT_CHARS = 600
_BACKGROUND, _FRAME, _INK, _FAINT = "#eef1f5", "#9aa5b1", "#1f2933", "#52606d"
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


@dataclass(frozen=True, slots=True)
class Picture:
    """The file's content or, from some upstreams, only a link to it."""

    content: bytes | None
    link: str | None = None
    revised_prompt: str | None = None
    text: str = ""


class Painter(Protocol):
    """Makes a picture; `options` may hold size, quality and style. Raises: Refusal."""

    async def paint(self, prompt: str, options: Mapping[str, str]) -> Picture: ...


def painter_of(choice: ModelChoice, name: str) -> Painter:
    if isinstance(choice, UpstreamModel):
        return UpstreamPainter(choice.base_url, name, choice.api_key)
    return PlaceholderPainter()


class PlaceholderPainter:
    """Draws the prompt's words under a notice."""

    async def paint(self, prompt: str, options: Mapping[str, str]) -> Picture:
        content = await asyncio.to_thread(_drawn, prompt, options.get("size"))
        return Picture(content, revised_prompt=f"A placeholder with the words: {prompt}", text=PLACEHOLDER_TEXT)


def _drawn(prompt: str, size: str | None) -> bytes:
    from PIL import Image, ImageDraw

    width, height = _dimensions(size)
    image = Image.new("RGB", (width, height), _BACKGROUND)
    pen = ImageDraw.Draw(image)
    edge = min(width, height) // 32
    pen.rectangle((edge, edge, width - edge, height - edge), outline=_FRAME, width=max(1, edge // 6))
    _write(pen, NOTICE, (width / 2, height * 0.12), min(width // 28, height // 16), _FAINT, width)
    _write(pen, prompt[:_PROMPT_CHARS], (width / 2, height / 2), min(width // 20, height // 18), _INK, width)
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _dimensions(size: str | None) -> tuple[int, int]:
    given = _SIZE.fullmatch(size or "")
    if given is None:
        return SIDE, SIDE
    width, height = (min(max(int(side), _SMALLEST), _LARGEST) for side in given.groups())
    return width, height


def _write(pen: Any, text: str, middle: tuple[float, float], points: int, colour: str, width: int) -> None:
    letters = max(8, int(width * 1.6 / max(points, 8)))
    lines = "\n".join(textwrap.wrap(text, letters))
    pen.multiline_text(
        middle, lines, fill=colour, font=_font(max(points, 8)), anchor="mm", align="center", spacing=points // 3
    )


def _font(points: int) -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.truetype("DejaVuSans.ttf", points)  # the font inside Pillow knows Latin letters only
    except OSError:
        return ImageFont.load_default(points)


@dataclass(frozen=True, slots=True)
class UpstreamPainter:
    """Asks the images API of an OpenAI-compatible server."""

    base_url: str
    model: str
    api_key: str | None = None

    async def paint(self, prompt: str, options: Mapping[str, str]) -> Picture:
        body = {"model": self.model, "prompt": prompt, "n": 1, **options}
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
    """How a caller sees a deployment's failure through Core, which keeps some statuses to itself."""
    if status in (429, 502, 503, 504):
        return Refusal(503, "Service is not available")
    if status in (404, 405, 501):
        return Refusal(404, error_of("The connected model provider makes no pictures", "404"))
    body = error if isinstance(error, dict) else error_of("The image model failed", "500")
    return Refusal(status if 400 <= status < 500 else 500, body)


def media_type(content: bytes) -> str:
    kind = next((kind for magic, kind in _MAGIC.items() if content.startswith(magic)), None)
    if kind is None:
        raise Refusal(500, error_of("The image model did not answer with a picture", "500"))
    return kind


def error_of(message: str, code: str) -> dict[str, Any]:
    return {"message": message, "type": "runtime_error", "code": code}
