"""The image model that local Core serves itself, as a chat deployment whose answers attach pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from task.llm.base import Usage
from task.local_core.access import BucketIds
from task.local_core.callers import IDENTITY, Identity
from task.local_core.config import CoreConfig, Model
from task.local_core.models import ModelChoice, UpstreamModel, described_by
from task.local_core.painters import PLACEHOLDER_TEXT, Painter, Picture, error_of, media_type
from task.local_core.relay import ResponseHooks
from task.local_core.responses import Refusal
from task.local_core.served import EventStream, block, block_response
from task.local_core.storage import Store
from task.local_core.urls import encode_segment

PLACEHOLDER_TITLE = "Placeholder pictures (no image model is connected)"
_OPTIONS = ("size", "quality", "style")


def with_image_model(file: CoreConfig, config: CoreConfig, name: str, choice: ModelChoice) -> CoreConfig:
    """`config` with the image model `name`, listed as what it is; an upstream's may be described in the `file`."""
    if not isinstance(choice, UpstreamModel):
        listed = Model(name=name, display_name=PLACEHOLDER_TITLE, description=PLACEHOLDER_TEXT)
    else:
        plain = Model(name=name, display_name=name, description="Makes a picture of a description.")
        listed = described_by(file, name) or plain
    return config.model_copy(update={"models": config.models | {name: listed}})


@dataclass(frozen=True, slots=True)
class ImageServer:
    """Answers completions with a picture that is stored in the model's folder of the initiator's bucket."""

    name: str
    painter: Painter
    store: Store
    buckets: BucketIds

    async def respond(
        self, request: web.Request, document: Mapping[str, Any], hooks: ResponseHooks
    ) -> web.StreamResponse:
        picture = await self.painter.paint(_prompt(document), _image_options(document))
        attachments = await self._attachments(request[IDENTITY], picture)
        if document.get("stream"):
            return await self._streamed(request, picture.text, attachments, hooks)
        message = {"content": picture.text, "custom_content": {"attachments": attachments}}
        answer = block(self.name, message, "stop", Usage())
        _share(hooks, "application/json", orjson.dumps(answer))
        return block_response(request, answer, hooks)

    async def _streamed(
        self, request: web.Request, text: str, attachments: list[dict[str, Any]], hooks: ResponseHooks
    ) -> web.StreamResponse:
        stream = EventStream(self.name, hooks)
        numbered = [{"index": index, **item} for index, item in enumerate(attachments)]
        delta = {"role": "assistant", "content": text, "custom_content": {"attachments": numbered}}
        events = stream.event(delta) + stream.event({}, "stop")
        _share(hooks, "text/event-stream", events)
        await stream.start(request)
        await stream.write(events)
        return await stream.end()

    async def _attachments(self, identity: Identity, picture: Picture) -> list[dict[str, Any]]:
        revised = [{"title": "Revised prompt", "data": picture.revised_prompt}] if picture.revised_prompt else []
        if picture.content is None:
            return [*revised, {"title": "Image", "type": "image/png", "url": picture.link}]
        kind = media_type(picture.content)
        return [*revised, {"title": "Image", "type": kind, "url": await self._stored(identity, picture.content, kind)}]

    async def _stored(self, identity: Identity, content: bytes, kind: str) -> str:
        home = f"files/{self.buckets.id_of(identity.owner)}/appdata/{encode_segment(self.name)}"
        url = f"{home}/images/{uuid4().hex}.{kind.rpartition('/')[2]}"
        with self.store.upload() as upload:
            await upload.write(content)
            await upload.finish()
            await self.store.keep(url, upload, kind, self.name, lambda _: None)
        return url


def _share(hooks: ResponseHooks, content_type: str, body: bytes) -> None:
    watch = hooks.watch(content_type)
    if watch is not None:
        watch.feed(body)
        watch.finish()


def _prompt(document: Mapping[str, Any]) -> str:
    """The last user message's text; an image model sees nothing else."""
    messages: Any = document.get("messages")
    if not isinstance(messages, list):
        messages = []
    content: Any = next(
        (m.get("content") for m in reversed(messages) if isinstance(m, dict) and m.get("role") == "user"), None
    )
    if isinstance(content, list):
        content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if not isinstance(content, str) or not content.strip():
        raise Refusal(400, error_of("The last user message holds no prompt", "400"))
    return content.strip()


def _image_options(document: Mapping[str, Any]) -> dict[str, str]:
    fields: Any = document.get("custom_fields")
    chosen: Any = fields.get("configuration") if isinstance(fields, dict) else None
    if not isinstance(chosen, dict):
        return {}
    return {name: chosen[name] for name in _OPTIONS if isinstance(chosen.get(name), str)}
