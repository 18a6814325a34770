"""A conversation's pictures, as far as the model in use can take them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from task.connection import Connection
from task.conversation.messages import Attachment, Message, Role
from task.errors import ToolError

UNSEEN = "[The user attached a picture here; the model in use cannot see pictures.]"
_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})  # others, such as SVG, no provider takes
logger = logging.getLogger(__name__)


async def as_seen(messages: Sequence[Message], connection: Connection, model: str, key: str) -> list[Message]:
    """The messages as the model is told them: with the attached pictures as image parts, or without any picture where
    it takes none. What is kept of a conversation stays the same for every model."""
    if not any(_pictures(message) or _has_parts(message) for message in messages):
        return list(messages)
    if not (connection.inline_images or await connection.listings.accepts_images(model, key)):
        return [_unseen(message) for message in messages]
    return [await _seen(message, connection, key) for message in messages]


async def _seen(message: Message, connection: Connection, key: str) -> Message:
    urls: list[str] = []
    for picture in _pictures(message):
        try:
            url = await connection.image_url(picture, key)
        except ToolError as error:
            logger.warning("a picture was left out: %s", error)
            continue
        urls += [url] if url else []
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return replace(message, content=[*_parts(message), *shown]) if shown else message


def _unseen(message: Message) -> Message:
    parts = [part if part.get("type") != "image_url" else _text(UNSEEN) for part in _parts(message)]
    parts += [_text(UNSEEN) for _ in _pictures(message)]
    if not (_pictures(message) or _has_parts(message)):
        return message
    plain = all(part.get("type") == "text" for part in parts)
    return replace(message, content="\n".join(part["text"] for part in parts) if plain else parts)


def _pictures(message: Message) -> list[Attachment]:
    if message.role is not Role.USER or message.custom_content is None:
        return []
    return [item for item in message.custom_content.attachments if item.type in _TYPES]


def _has_parts(message: Message) -> bool:
    return isinstance(message.content, list) and any(part.get("type") == "image_url" for part in message.content)


def _parts(message: Message) -> list[dict[str, Any]]:
    return message.content if isinstance(message.content, list) else [_text(message.content or "")]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
