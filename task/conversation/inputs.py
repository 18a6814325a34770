"""Turn the messages of a request into the conversation that a model sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from task.conversation.messages import (
    NOT_APPROVED,
    PERHAPS_RUN,
    Attachment,
    CustomContent,
    Message,
    Role,
    closed,
    frozen_data,
    repaired,
    with_turn,
)
from task.conversation.replies import Answer, codes_in, read_reply
from task.conversation.state import NO_TOOLS, TurnState


@frozen_data
class Incoming:
    """One message of a request with DIAL's additions to its text; `state` and `form_value` are not validated."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    attachments: tuple[Attachment, ...] = ()
    state: Mapping[str, Any] | None = None
    plain: Message | None = None  # an assistant or tool message that came with calls, as it is
    form_value: Any = None
    scrub_pii: bool = False

    def text(self) -> str:
        return self.content if isinstance(self.content, str) else Message(self.role, self.content).text()


ATTACHED = "Attached files:"  # the heading of the list of attachments in a message
_NO_TURN = TurnState()  # shared: most messages of a long conversation have no state

Turns = Mapping[int, TurnState]


def decision_of(item: Incoming, codes: Sequence[str]) -> tuple[Answer, ...] | None:
    """The decision about the waiting calls with these codes that a message consists of.

    None: it is not one, or not the user's.
    """
    return read_reply(item.text(), item.form_value, codes) if _may_decide(item) else None


def codes_of(item: Incoming) -> tuple[str, ...]:
    """The codes that a message names, if it is a decision in words."""
    return (codes_in(item.text()) or ()) if _may_decide(item) else ()


def _may_decide(item: Incoming) -> bool:
    # A message with files is never a decision: they would belong to a question.
    if item.role is not Role.USER or item.plain is not None or item.attachments:
        return False
    return not isinstance(item.content, list) or all(part.get("type") == "text" for part in item.content)


def conversation(incoming: Sequence[Incoming], turns: Turns, *, resuming: bool = False) -> list[Message]:
    """The whole conversation as a model must see it, without a system prompt.

    `turns` is what the messages' states hold, by the messages' position. With `resuming` the last message decides about
    the suspended turn before it: the conversation then ends with that turn's tool history, its waiting calls
    unanswered.

    A turn that resumed a suspended one replaces both: the question to the user, which the model never wrote, and the
    decision are left out. So are a decision that named codes of other questions, and its answer, which asks the same
    question again.
    """
    messages = list[Message]()
    before, place, start = _NO_TURN, 0, 0  # the last turn that was added, and its places in the request and in messages
    for position, item in enumerate(incoming[:-1] if resuming else incoming):
        if item.plain is not None:
            messages.append(item.plain)
            continue
        if item.role is not Role.ASSISTANT:
            messages.append(user_message(item))
            continue
        turn = turns.get(position, _NO_TURN)
        if before.turn and before.turn in (turn.resumes, turn.turn) and position == place + 2:
            del messages[start:]
        before, place, start = turn, position, len(messages)
        if turn.turn:
            answers = decision_of(incoming[position + 1], turn.codes) if position + 1 < len(incoming) else None
            result = PERHAPS_RUN if any(answer.allowed for answer in answers or ()) else NOT_APPROVED
            messages += closed(turn.history, {call.call_id for call in turn.pending}, result)
        elif turn.history:
            messages += with_turn(turn.history, item.text())
        else:
            unsourced = position not in turns and item.state != NO_TOOLS
            messages.append(Message(Role.ASSISTANT, item.text(), unsourced=unsourced))
        pictures = tuple(file for file in item.attachments if file.is_stored_picture) if item.attachments else ()
        if pictures and messages[-1].role is Role.ASSISTANT:
            messages[-1] = replace(messages[-1], custom_content=CustomContent(pictures))
    return [*repaired(messages[:start]), *before.history] if resuming else repaired(messages)


def is_image(attachment: Attachment) -> bool:
    return (attachment.type or "").startswith("image/")


def user_message(incoming: Incoming) -> Message:
    """The user's message with its attachments, which are also listed at the end of the text."""
    files = incoming.attachments
    if not files:
        content = incoming.content if incoming.content is not None else ""
        return Message(incoming.role, content, scrub_pii=incoming.scrub_pii)
    note = attachment_note(files)
    if isinstance(incoming.content, list):
        content: str | list[dict[str, Any]] = [*incoming.content, {"type": "text", "text": note}]
    else:
        content = "\n\n".join(filter(None, (incoming.content, note)))
    return Message(incoming.role, content, custom_content=CustomContent(files), scrub_pii=incoming.scrub_pii)


def attachment_note(attachments: Sequence[Attachment]) -> str:
    """The attachments as lines that the model can use in calls: `- title (type): url`; empty without attachments."""
    lines = [ATTACHED]
    for item in attachments:
        place = item.url or item.reference_url or "(its content is not stored as a file)"
        title = " ".join((item.title or place.rsplit("/", 1)[-1]).split())
        lines.append(f"- {title} ({item.type or 'unknown type'}): {place}")
    return "\n".join(lines) if attachments else ""


_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\]+")
_LONGEST = 120


def file_names(files: Iterable[tuple[str, str]]) -> list[str]:
    """A name for each title and address: the title, with a number where an earlier file has that name."""
    names: dict[str, None] = {}
    for title, url in files:
        name = plain_name(title or unquote(PurePosixPath(url).name), url)
        path, number = PurePosixPath(name), 2
        while name in names:
            name, number = f"{path.stem}_{number}{path.suffix}", number + 1
        names[name] = None
    return list(names)


def plain_name(title: str, url: str) -> str:
    """The title as a file name, with the ending of the URL if it has none."""
    name = _UNFIT.sub("_", title).strip(" .") or "file"
    path, ending = PurePosixPath(name), PurePosixPath(unquote(url)).suffix
    return f"{path.stem[:_LONGEST]}{(path.suffix or ending)[:20]}"


CALLER = "task.caller"  # in an ASGI scope: the caller, where the guard has found out who it is
# Headers that describe this request only, or that only this application may see.
_OURS = ("x-upstream-", "x-forwarded-", "x-dial-override-name", "x-dial-deployment-id", "x-dial-application-")


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are forwarded to models and servers: the trace context, and `X-*` not meant for us alone."""
    return {
        name: value
        for name, value in headers.items()
        if name.lower() in ("traceparent", "tracestate")
        or (name.lower().startswith("x-") and not name.lower().startswith(_OURS))
    }
