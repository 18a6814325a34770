"""The image model that local Core serves itself, as a chat deployment: an upstream's, or labelled placeholders."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import textwrap
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
from aiohttp import web

from task.llm.base import Usage
from task.local.core.access import PRINCIPAL, BucketIds, Principal
from task.local.core.config import CoreConfig, Model
from task.local.core.models import ModelChoice, UpstreamModel, described_by
from task.local.core.relay import ResponseHooks
from task.local.core.responses import Refusal
from task.local.core.served import CompletionStream, block, block_response
from task.local.core.storage import FileStore
from task.local.core.urls import encode_segment

PLACEHOLDER_TEXT = "This is a placeholder, not a generated picture: no image model is connected to local Core."
PLACEHOLDER_TITLE = "Placeholder pictures (no image model is connected)"
NOTICE = "placeholder - no image model is connected"
UPSTREAM_SECONDS = 300
SIDE = 1024

_SIZE = re.compile(r"(\d{2,4})x(\d{2,4})")
_SMALLEST, _LARGEST = 128, 2048  # pixels of a placeholder's side
_PROMPT_CHARS = 600
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


@dataclass(frozen=True, slots=True)
class Picture:
    """The file's content or, from some upstreams, only a link to it."""

    content: bytes | None
    link: str | None = None
    revised_prompt: str | None = None
    text: str = ""


Painter = Callable[[str, Mapping[str, str]], Awaitable[Picture]]
"""Makes a picture of a prompt; the options may hold size, quality and style. Raises: Refusal."""


def with_image_model(file: CoreConfig, config: CoreConfig, name: str, choice: ModelChoice) -> CoreConfig:
    """`config` with the image model `name`, listed as what it is; an upstream's may be described in the `file`."""
    if isinstance(choice, UpstreamModel):
        plain = Model(name=name, display_name=name, description="Makes a picture of a description.")
        listed = described_by(file, name) or plain
    else:
        listed = Model(name=name, display_name=PLACEHOLDER_TITLE, description=PLACEHOLDER_TEXT)
    return config.model_copy(update={"models": config.models | {name: listed}})


def painter_of(choice: ModelChoice, name: str) -> Painter:
    return _upstream_painter(choice, name) if isinstance(choice, UpstreamModel) else _paint_placeholder


@dataclass(frozen=True, slots=True)
class ImageServer:
    """Answers completions with a picture that is stored in the model's folder of the initiator's bucket."""

    name: str
    paint: Painter
    store: FileStore
    buckets: BucketIds

    async def respond(
        self, request: web.Request, document: Mapping[str, Any], hooks: ResponseHooks
    ) -> web.StreamResponse:
        picture = await self.paint(_prompt(document), _image_options(document))
        attachments = await self._attachments(request[PRINCIPAL], picture)
        if not document.get("stream"):
            message = {"content": picture.text, "custom_content": {"attachments": attachments}}
            answer = block(self.name, message, "stop", Usage())
            _share(hooks, "application/json", orjson.dumps(answer))
            return block_response(answer, hooks)
        stream = CompletionStream(self.name, hooks)
        numbered = [{"index": index, **item} for index, item in enumerate(attachments)]
        delta = {"role": "assistant", "content": picture.text, "custom_content": {"attachments": numbered}}
        events = stream.event(delta) + stream.event({}, "stop")
        _share(hooks, "text/event-stream", events)
        await stream.start(request)
        await stream.write(events)
        return await stream.end()

    async def _attachments(self, caller: Principal, picture: Picture) -> list[dict[str, Any]]:
        revised = [{"title": "Revised prompt", "data": picture.revised_prompt}] if picture.revised_prompt else []
        if picture.content is None:
            return [*revised, {"title": "Image", "type": "image/png", "url": picture.link}]
        kind = next((kind for magic, kind in _MAGIC.items() if picture.content.startswith(magic)), None)
        if kind is None:
            raise Refusal(500, _error("The image model did not answer with a picture", "500"))
        home = f"files/{self.buckets.id_of(caller.owner)}/appdata/{encode_segment(self.name)}"
        url = f"{home}/images/{uuid4().hex}.{kind.rpartition('/')[2]}"
        with self.store.upload() as upload:
            await upload.write(picture.content)
            await upload.finish()
            await asyncio.to_thread(self.store.keep, url, upload, kind, self.name, lambda _: None)
        return [*revised, {"title": "Image", "type": kind, "url": url}]


def _share(hooks: ResponseHooks, content_type: str, body: bytes) -> None:
    watch = hooks.watch(content_type)
    if watch is not None:
        watch.feed(body)
        watch.finish()


def _prompt(document: Mapping[str, Any]) -> str:
    messages: Any = document.get("messages")
    if not isinstance(messages, list):
        messages = []
    users = [one for one in messages if isinstance(one, dict) and one.get("role") == "user"]
    content: Any = users[-1].get("content") if users else None
    if isinstance(content, list):
        content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if not isinstance(content, str) or not content.strip():
        raise Refusal(400, _error("The last user message holds no prompt", "400"))
    return content.strip()


def _image_options(document: Mapping[str, Any]) -> dict[str, str]:
    fields: Any = document.get("custom_fields")
    chosen: Any = fields.get("configuration") if isinstance(fields, dict) else None
    if not isinstance(chosen, dict):
        return {}
    return {name: chosen[name] for name in ("size", "quality", "style") if isinstance(chosen.get(name), str)}


async def _paint_placeholder(prompt: str, options: Mapping[str, str]) -> Picture:
    content = await asyncio.to_thread(_placeholder, prompt, options.get("size"))
    return Picture(content, revised_prompt=f"A placeholder with the words: {prompt}", text=PLACEHOLDER_TEXT)


def _placeholder(prompt: str, size: str | None) -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    given = _SIZE.fullmatch(size or "")
    sides = [int(side) for side in given.groups()] if given else [SIDE, SIDE]
    width, height = (min(max(side, _SMALLEST), _LARGEST) for side in sides)
    points = max(8, min(width // 24, height // 18))
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", points)  # the font inside Pillow knows Latin letters only
    except OSError:
        font = ImageFont.load_default(points)
    words = "\n".join([NOTICE, "", *textwrap.wrap(prompt[:_PROMPT_CHARS], 40)])
    image = Image.new("RGB", (width, height), "#eef1f5")
    pen = ImageDraw.Draw(image)
    pen.multiline_text((width / 2, height / 2), words, fill="#1f2933", font=font, anchor="mm", align="center")
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _upstream_painter(choice: UpstreamModel, model: str) -> Painter:
    headers = {"Authorization": f"Bearer {choice.api_key}"} if choice.api_key else {}
    limit = aiohttp.ClientTimeout(total=UPSTREAM_SECONDS, sock_connect=10)
    url = f"{choice.base_url.rstrip('/')}/images/generations"

    async def paint(prompt: str, options: Mapping[str, str]) -> Picture:
        body = {"model": model, "prompt": prompt, "n": 1, **options}
        if model.startswith("dall-e"):
            body["response_format"] = "b64_json"  # later models know no other and refuse the field
        try:
            async with (
                aiohttp.ClientSession(timeout=limit, headers=headers, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(url, json=body, allow_redirects=False) as response,
            ):
                return _parsed_picture(response.status, await response.read())
        except aiohttp.ClientError:
            raise Refusal(502, _error("Failed to connect to the image model", "502")) from None
        except TimeoutError:
            raise Refusal(500, _error("The image model took too long", "timeout")) from None

    return paint


def _parsed_picture(status: int, body: bytes) -> Picture:
    error: Any = None
    try:
        document: Any = orjson.loads(body)
        if status == 200:
            made = document["data"][0]
            content = base64.b64decode(made["b64_json"], validate=True) if made.get("b64_json") else None
            if content is not None or isinstance(made.get("url"), str):
                return Picture(content, made.get("url"), made.get("revised_prompt"))
            error = _error("The image model answered without a picture", "500")
        else:
            error = document["error"]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        pass
    # How a caller sees a deployment's failure through Core, which keeps some statuses to itself
    if status in (429, 502, 503, 504):
        raise Refusal(503, "Service is not available")
    if status in (404, 405, 501):
        raise Refusal(404, _error("The connected model provider makes no pictures", "404"))
    shown = error if isinstance(error, dict) else _error("The image model failed", "500")
    raise Refusal(status if 400 <= status < 500 else 500, shown)


def _error(message: str, code: str) -> dict[str, Any]:
    return {"message": message, "type": "runtime_error", "code": code}
