"""What a caller sent, before it becomes part of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from task.conversation.history import repaired, with_turn
from task.conversation.messages import Attachment, Message, Role, system


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message of a request with what DIAL carries beside its text; `state` is unchecked."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    attachments: tuple[Attachment, ...] = ()
    state: Mapping[str, Any] | None = None
    plain: Message | None = None  # an assistant or tool message that came with calls, as it is


ReadState = Callable[[Mapping[str, Any]], Sequence[Message]]
Pictures = Mapping[int, Sequence[str]]


def conversation(
    system_prompt: str, incoming: Sequence[Incoming], read_state: ReadState, pictures: Pictures | None
) -> list[Message]:
    """The whole conversation as a model must see it.

    `read_state` gives the tool history that a message's state holds. `pictures` are the picture URLs by position of
    their message; None: the model takes no pictures.
    """
    messages = [system(system_prompt)]
    for position, item in enumerate(incoming):
        if item.plain is not None:
            messages.append(item.plain)
        elif item.role is Role.ASSISTANT:
            answer = Message(Role.ASSISTANT, item.content or "")
            if item.state is not None:
                messages += with_turn(read_state(item.state), answer.text())
            else:
                messages.append(answer if isinstance(answer.content, str) else Message(Role.ASSISTANT, answer.text()))
        else:
            messages.append(user_message(item, None if pictures is None else pictures.get(position, ())))
    return repaired(messages)


def is_image(attachment: Attachment) -> bool:
    return (attachment.type or "").startswith("image/")


def user_message(incoming: Incoming, images: Sequence[str] | None) -> Message:
    """The user's message with its attachments told at the end, and its pictures as image parts.

    `images` are the URLs of the pictures as the model can fetch them; None: the model takes no pictures, and the
    text says so.
    """
    if not incoming.attachments and not images:
        return Message(incoming.role, incoming.content if incoming.content is not None else "")
    note = attachment_note(incoming.attachments)
    if images is None and any(map(is_image, incoming.attachments)):
        note += "\n(The model in use cannot see pictures; tell the user if the question needs one.)"
    parts = _parts(incoming.content)
    if isinstance(incoming.content, list) or images:
        notes = [{"type": "text", "text": note}] if note else []
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in images or ()]
        return Message(incoming.role, [*parts, *notes, *pictures])
    return Message(incoming.role, "\n\n".join(filter(None, (incoming.content, note))))


def attachment_note(attachments: Sequence[Attachment]) -> str:
    """The attachments as lines the model can use in calls: `- title (type): url`; empty without attachments."""
    lines = [_line(attachment) for attachment in attachments]
    return "\n".join(["Attached files:", *lines]) if lines else ""


def _line(attachment: Attachment) -> str:
    place = attachment.url or attachment.reference_url or "(its content is not stored as a file)"
    title = " ".join((attachment.title or place.rsplit("/", 1)[-1]).split())
    return f"- {title} ({attachment.type or 'unknown type'}): {place}"


def _parts(content: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []
