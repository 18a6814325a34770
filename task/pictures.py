"""Pictures of the conversation for models that see: those of questions, and the latest ones of earlier answers."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from task.conversation.messages import SHOWN_AGAIN, Attachment, Message, Role
from task.core_client.files import DialFiles
from task.errors import ToolError
from task.product import Backend, Profile, Services

UNSEEN = (
    "[The user attached a picture here; the model in use cannot see pictures. Tell the user if the question needs one.]"
)
MOST_MADE = 4  # each costs about a thousand tokens in every later request
MADE_BYTES = 8 * 2**20
MAX_IMAGE_BYTES = 10 * 2**20
logger = logging.getLogger(__name__)


async def with_pictures(services: Services, profile: Profile, messages: Sequence[Message], key: str) -> list[Message]:
    """The messages for the profile's model: image parts of questions, or a sentence where it takes no pictures.

    A model cannot be sent pictures as its own, so those of an answer are shown with the question after it.
    """
    made = _made(messages)
    if made or any(_asked_with(message) or _has_image_parts(message) for message in messages):
        facts = profile.backend.facts
        if facts is None or await facts.accepts_images(profile.model, key):  # a model that nothing describes may see
            messages = await _seen(services.files, profile.backend, messages, made, key)
        else:
            messages = [_unseen(message) for message in messages]
    # Not the attachments of questions: the text of a question lists its files already.
    return [
        replace(message, attachments=()) if message.role is Role.USER and message.attachments else message
        for message in messages
    ]


def _made(messages: Sequence[Message]) -> list[tuple[int, Attachment]]:
    # The latest pictures of answers, the newest first, each behind the position of the question after it.
    found, question = dict[str, tuple[int, Attachment]](), None
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role is Role.USER:
            question = place
        elif question is not None:
            for item in reversed(messages[place].attachments):
                if item.is_stored_picture and item.url is not None and len(found) < MOST_MADE:
                    found.setdefault(item.url, (question, item))
    return list(found.values())


async def _seen(
    files: DialFiles, backend: Backend, messages: Sequence[Message], made: Sequence[tuple[int, Attachment]], key: str
) -> list[Message]:
    shown, readable = list[Message](), await _readable(files, made, key)
    for place, message in enumerate(messages):
        own = readable.get(place, [])
        parts = [_text("\n".join([SHOWN_AGAIN, *(f"- {item.url}" for item in own)]))] if own else []
        for item in (*own, *_asked_with(message)):
            try:
                url = await _image_url(files, item, key, fetched=backend.fetches_files)
            except ToolError as error:
                logger.warning("a picture was left out: %s", error)
                continue
            parts += [{"type": "image_url", "image_url": {"url": url}}] if url else []
        shown.append(replace(message, content=[*_parts(message), *parts]) if parts else message)
    return shown


async def _readable(files: DialFiles, made: Sequence[tuple[int, Attachment]], key: str) -> dict[int, list[Attachment]]:
    # By question. DIAL Core refuses a whole request because of one file that was deleted.
    async def size(item: Attachment) -> int | None:
        try:
            return (await files.metadata(item.url or "", key)).size or 0
        except ToolError as error:
            logger.warning("a picture of an earlier answer was left out: %s", error)
            return None

    readable, room = dict[int, list[Attachment]](), MADE_BYTES
    sizes = await asyncio.gather(*(size(item) for _, item in made))
    for (place, item), found in zip(made, sizes, strict=True):
        if found is not None and found <= room:
            readable.setdefault(place, []).insert(0, item)
            room -= found
    return readable


async def _image_url(files: DialFiles, image: Attachment, api_key: str, *, fetched: bool) -> str | None:
    if image.data is not None:
        return f"data:{image.type};base64,{image.data}"
    if image.url is None or image.url.startswith("data:"):
        return image.url
    if "://" in image.url:
        return None
    if fetched:
        files.check(image.url, api_key)
        return image.url
    file = await files.download(image.url, api_key, MAX_IMAGE_BYTES)
    return f"data:{image.type};base64,{base64.b64encode(file.content).decode()}"


def _unseen(message: Message) -> Message:
    if not (_asked_with(message) or _has_image_parts(message)):
        return message
    parts = [part if part.get("type") != "image_url" else _text(UNSEEN) for part in _parts(message)]
    parts += [_text(UNSEEN) for _ in _asked_with(message)]
    plain = all(part.get("type") == "text" for part in parts)
    return replace(message, content="\n".join(part["text"] for part in parts) if plain else parts)


def _asked_with(message: Message) -> list[Attachment]:
    return [item for item in message.attachments if item.is_picture] if message.role is Role.USER else []


def _has_image_parts(message: Message) -> bool:
    return isinstance(message.content, list) and any(part.get("type") == "image_url" for part in message.content)


def _parts(message: Message) -> list[dict[str, Any]]:
    return message.content if isinstance(message.content, list) else [_text(message.content or "")]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
