"""Pictures of the conversation for models that see: those of questions, and the latest ones of earlier answers."""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from task.conversation.messages import SHOWN_AGAIN, Attachment, Message, Role
from task.errors import ToolError

UNSEEN = (
    "[The user attached a picture here; the model in use cannot see pictures. Tell the user if the question needs one.]"
)
MOST_MADE = 4  # each costs about a thousand tokens in every later request
MADE_BYTES = 8 * 2**20
MAX_IMAGE_BYTES = 10 * 2**20
logger = logging.getLogger(__name__)


class Stored(Protocol):
    """Where the pictures are that a message only names: DIAL's files."""

    async def metadata(self, url: str, api_key: str) -> Any: ...
    async def download(self, url: str, api_key: str, max_size: int) -> Any: ...
    def check(self, url: str, api_key: str) -> object: ...


async def with_pictures(
    messages: Sequence[Message],
    files: Stored,
    key: str,
    sees: Callable[[], Awaitable[bool]] | None,
    *,
    fetched: bool,
) -> list[Message]:
    """The messages for a model: image parts of questions, or a sentence where it takes no pictures.

    `sees`: whether it does; None: nothing describes the model, so it may. `fetched`: it fetches files by itself.
    A model cannot be sent pictures as its own, so those of an answer are shown with the question after it.
    """
    made, unseen = _made(messages), [_unseen(message) for message in messages]
    if made or unseen != list(messages):
        seen = sees is None or await sees()
        messages = await _seen(files, messages, made, key, fetched=fetched) if seen else unseen
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
    files: Stored, messages: Sequence[Message], made: Sequence[tuple[int, Attachment]], key: str, *, fetched: bool
) -> list[Message]:
    shown, readable = list[Message](), await _readable(files, made, key)
    for place, message in enumerate(messages):
        own = readable.get(place, [])
        parts = [_text("\n".join([SHOWN_AGAIN, *(f"- {item.url}" for item in own)]))] if own else []
        for item in (*own, *_asked_with(message)):
            try:
                url = await _image_url(files, item, key, fetched=fetched)
            except ToolError as error:
                logger.warning("a picture was left out: %s", error)
                continue
            parts += [{"type": "image_url", "image_url": {"url": url}}] if url else []
        shown.append(replace(message, content=[*_parts(message), *parts]) if parts else message)
    return shown


async def _readable(files: Stored, made: Sequence[tuple[int, Attachment]], key: str) -> dict[int, list[Attachment]]:
    # By question. DIAL Core refuses a whole request because of one file that was deleted.
    readable, room = dict[int, list[Attachment]](), MADE_BYTES
    found = await asyncio.gather(*(files.metadata(item.url or "", key) for _, item in made), return_exceptions=True)
    for (place, item), file in zip(made, found, strict=True):
        if isinstance(file, ToolError):
            logger.warning("a picture of an earlier answer was left out: %s", file)
        elif isinstance(file, BaseException):
            raise file
        elif (size := file.size or 0) <= room:
            readable.setdefault(place, []).insert(0, item)
            room -= size
    return readable


async def _image_url(files: Stored, image: Attachment, api_key: str, *, fetched: bool) -> str | None:
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
    given = _parts(message)
    parts = [part if part.get("type") != "image_url" else _text(UNSEEN) for part in given]
    parts += [_text(UNSEEN) for _ in _asked_with(message)]
    if parts == given:
        return message
    plain = all(part.get("type") == "text" for part in parts)
    return replace(message, content="\n".join(part["text"] for part in parts) if plain else parts)


def _asked_with(message: Message) -> list[Attachment]:
    return [item for item in message.attachments if item.is_picture] if message.role is Role.USER else []


def _parts(message: Message) -> list[dict[str, Any]]:
    return message.content if isinstance(message.content, list) else [_text(message.content or "")]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
