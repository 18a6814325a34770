"""The image model that local Core serves itself, as a chat deployment: an upstream's, or labelled placeholders."""

import asyncio
import base64
import io
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
from aiohttp import web

from task.conversation.messages import Attachment, Role
from task.llm.base import Delta, FileDelta, Finish, TextDelta
from task.local.core.access import PRINCIPAL, AccessRules, PerRequestKeys, Principal
from task.local.core.models import PLACEHOLDER_TEXT, UpstreamModel
from task.local.core.responses import Refusal, openai_error
from task.local.core.served import answer_with, messages_in
from task.local.core.storage import FileStore

NOTICE = "placeholder - no image model is connected"
UPSTREAM_LIMIT = aiohttp.ClientTimeout(total=300, sock_connect=10)  # seconds
SIDE = 1024  # pixels
OPTIONS = ("size", "quality", "style")
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


@dataclass(frozen=True, slots=True)
class Picture:
    """The file's content or, from some upstreams, only a link to it."""

    content: bytes | None
    link: str | None = None
    revised_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class ImageServer:
    """Answers completions with a picture that is stored in the model's folder of the initiator's bucket.

    It comes from the images API of an OpenAI-compatible upstream; without one it is a labelled placeholder.
    """

    name: str
    upstream: UpstreamModel | None
    session: aiohttp.ClientSession
    store: FileStore
    access: AccessRules
    keys: PerRequestKeys

    async def respond(self, request: web.Request, document: Mapping[str, Any]) -> web.StreamResponse:
        asked = [message.text().strip() for message in messages_in(document) if message.role is Role.USER]
        if not (prompt := asked[-1] if asked else ""):
            raise Refusal(400, openai_error("The last user message holds no prompt", "400"))
        if self.upstream is not None:
            picture = await self._requested(self.upstream, prompt, document.get("custom_fields"))
        else:
            content = await asyncio.to_thread(_placeholder)
            picture = Picture(content, revised_prompt=f"A placeholder with the words: {prompt}")
        image = await self._stored(request[PRINCIPAL], picture)

        async def deltas() -> AsyncGenerator[Delta]:
            if self.upstream is None:
                yield TextDelta(PLACEHOLDER_TEXT)
            if picture.revised_prompt:
                yield FileDelta(Attachment(title="Revised prompt", data=picture.revised_prompt))
            yield FileDelta(image)
            yield Finish("stop")

        return await answer_with(request, self.name, deltas(), stream=bool(document.get("stream")))

    async def _stored(self, caller: Principal, picture: Picture) -> Attachment:
        if picture.content is None:
            return Attachment("image/png", "Image", url=picture.link)
        kind = next((kind for magic, kind in _MAGIC.items() if picture.content.startswith(magic)), None)
        if kind is None:
            raise Refusal(500, openai_error("The image model did not answer with a picture", "500"))
        home = f"files/{self.access.appdata_of(caller.owner, self.name)}/"
        url = f"{home}images/{uuid4().hex}.{kind.rpartition('/')[2]}"
        content, user = io.BytesIO(picture.content), replace(caller, key=None)  # who owns all folders of the bucket
        await asyncio.to_thread(self.store.keep, user, url, content, kind, self.name, lambda _: None)
        if caller.key is not None:
            self.keys.add_rights(caller.key, home, [url])
        return Attachment(kind, "Image", url=url)

    async def _requested(self, upstream: UpstreamModel, prompt: str, fields: Any) -> Picture:
        body: dict[str, Any] = {"model": self.name, "prompt": prompt, "n": 1}
        chosen: Any = fields.get("configuration") if isinstance(fields, dict) else None
        if isinstance(chosen, dict):
            body |= {name: chosen[name] for name in OPTIONS if isinstance(chosen.get(name), str)}
        if self.name.startswith("dall-e"):
            body["response_format"] = "b64_json"  # later models know no other and refuse the field
        url = f"{upstream.base_url.rstrip('/')}/images/generations"
        headers = {"Authorization": f"Bearer {upstream.api_key}"} if upstream.api_key else {}
        try:
            async with self.session.post(
                url, json=body, headers=headers, timeout=UPSTREAM_LIMIT, allow_redirects=False
            ) as response:
                return _parsed_picture(response.status, await response.read())
        except aiohttp.ClientError:
            raise Refusal(502, openai_error("Failed to connect to the image model", "502")) from None
        except TimeoutError:
            raise Refusal(500, openai_error("The image model took too long", "timeout")) from None


def _placeholder() -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (SIDE, SIDE), "#eef1f5")
    middle, font = (SIDE / 2, SIDE / 2), ImageFont.load_default(SIDE // 24)
    ImageDraw.Draw(image).text(middle, NOTICE, fill="#1f2933", font=font, anchor="mm")
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _parsed_picture(status: int, body: bytes) -> Picture:
    # How a caller sees a deployment's failure through Core, which keeps some statuses to itself
    if status in (429, 502, 503, 504):
        raise Refusal(503, "Service is not available")
    if status in (404, 405, 501):
        raise Refusal(404, openai_error("The connected model provider makes no pictures", "404"))
    with suppress(ValueError, KeyError, IndexError, TypeError, AttributeError):
        document: Any = orjson.loads(body)
        if status != 200:
            raise Refusal(status if 400 <= status < 500 else 500, {**document["error"]})
        made = document["data"][0]
        content = base64.b64decode(made["b64_json"], validate=True) if made.get("b64_json") else None
        if content is not None or isinstance(made.get("url"), str):
            return Picture(content, made.get("url"), made.get("revised_prompt"))
    raise Refusal(500, openai_error("The image model answered without a picture", "500"))
