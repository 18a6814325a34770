"""The image model that local Core serves itself, as a chat deployment whose answers attach pictures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from task.local_core.buckets import BucketIds
from task.local_core.config import CoreConfig, Model
from task.local_core.identity import IDENTITY, Identity
from task.local_core.models import ModelChoice, UpstreamModel
from task.local_core.painters import PLACEHOLDER_TEXT, Painter, Picture, error_of, kind_of
from task.local_core.refusal import Refusal, json_answer
from task.local_core.relay import Answering
from task.local_core.storage import Store
from task.local_core.urls import encode_segment

PLACEHOLDER_TITLE = "Placeholder pictures (no image model is connected)"
_WISHES = ("size", "quality", "style")


def with_image_model(file: CoreConfig, config: CoreConfig, name: str, choice: ModelChoice) -> CoreConfig:
    """`config` with the image model `name`, listed as what it is; an upstream's may be described in the `file`."""
    described = file.models.get(name)
    if not isinstance(choice, UpstreamModel):
        listed = Model(name=name, display_name=PLACEHOLDER_TITLE, description=PLACEHOLDER_TEXT)
    elif described is not None:
        listed = described.model_copy(update={"endpoint": None, "upstreams": [], "override_name": None})
    else:
        listed = Model(name=name, display_name=name, description="Makes a picture of a description.")
    return config.model_copy(update={"models": config.models | {name: listed}})


class ImagesServed:
    """Answers completions with a picture that lies in the model's folder of the initiator's bucket."""

    def __init__(self, name: str, painter: Painter, store: Store, buckets: BucketIds) -> None:
        self._name = name
        self._painter = painter
        self._store = store
        self._buckets = buckets

    @property
    def name(self) -> str:
        return self._name

    async def answer(
        self, request: web.Request, document: Mapping[str, Any], answering: Answering
    ) -> web.StreamResponse:
        picture = await self._painter.paint(_prompt(document), _wishes(document))
        attachments = await self._attachments(request[IDENTITY], picture)
        message = {"content": picture.text, "custom_content": {"attachments": attachments}}
        envelope = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": self.name}
        if document.get("stream"):
            return await _streamed(request, envelope, message, answering)
        return _block(request, envelope, message, answering)

    async def _attachments(self, identity: Identity, picture: Picture) -> list[dict[str, Any]]:
        revised = [{"title": "Revised prompt", "data": picture.revised_prompt}] if picture.revised_prompt else []
        if picture.content is None:
            return [*revised, {"title": "Image", "type": "image/png", "url": picture.link}]
        kind = kind_of(picture.content)
        return [*revised, {"title": "Image", "type": kind, "url": await self._stored(identity, picture.content, kind)}]

    async def _stored(self, identity: Identity, content: bytes, kind: str) -> str:
        home = f"files/{self._buckets.id_of(identity.owner)}/appdata/{encode_segment(self.name)}"
        url = f"{home}/images/{uuid4().hex}.{kind.rpartition('/')[2]}"
        with self._store.upload() as upload:
            await upload.write(content)
            await upload.finish()
            await self._store.keep(url, upload, kind, self.name, lambda _: None)
        return url


async def _streamed(
    request: web.Request, envelope: dict[str, Any], message: dict[str, Any], answering: Answering
) -> web.StreamResponse:
    kind = "text/event-stream"
    attachments = [{"index": place, **item} for place, item in enumerate(message["custom_content"]["attachments"])]
    delta = {"role": "assistant", "content": message["content"], "custom_content": {"attachments": attachments}}
    chunks = [_choice({"delta": delta, "finish_reason": None}), _choice({"delta": {}, "finish_reason": "stop"})]
    events = [orjson.dumps(envelope | {"object": "chat.completion.chunk"} | chunk) for chunk in chunks]
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    _share(answering, kind, body)
    response = web.StreamResponse(headers={"Content-Type": kind, "X-UPSTREAM-ATTEMPTS": "1"})
    await response.prepare(request)
    answering.ended(200)
    await response.write(body + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _block(
    request: web.Request, envelope: dict[str, Any], message: dict[str, Any], answering: Answering
) -> web.Response:
    choice = _choice({"message": {"role": "assistant", **message}, "finish_reason": "stop"})
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    document = envelope | {"object": "chat.completion", "usage": usage} | choice
    _share(answering, "application/json", orjson.dumps(document))
    answering.ended(200)
    answer = json_answer(request, document)
    answer.headers["X-UPSTREAM-ATTEMPTS"] = "1"
    return answer


def _share(answering: Answering, content_type: str, body: bytes) -> None:
    watch = answering.watch(content_type)
    if watch is not None:
        watch.feed(body)
        watch.finish()


def _choice(fields: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, **fields}]}


def _prompt(document: Mapping[str, Any]) -> str:
    """The last user message's text; an image model sees nothing else."""
    messages: Any = document.get("messages")
    told = (
        [m for m in messages if isinstance(m, dict) and m.get("role") == "user"] if isinstance(messages, list) else []
    )
    content: Any = told[-1].get("content") if told else None
    if isinstance(content, list):
        content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if not isinstance(content, str) or not content.strip():
        raise Refusal(400, error_of("The last user message holds no prompt", "400"))
    return content.strip()


def _wishes(document: Mapping[str, Any]) -> dict[str, str]:
    fields: Any = document.get("custom_fields")
    chosen: Any = fields.get("configuration") if isinstance(fields, dict) else None
    if not isinstance(chosen, dict):
        return {}
    return {name: chosen[name] for name in _WISHES if isinstance(chosen.get(name), str)}
