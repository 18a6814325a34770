"""Turn the messages of a request into the conversation that a model sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from task.conversation.history import NOT_APPROVED, PERHAPS_RUN, closed, repaired, with_turn
from task.conversation.messages import Attachment, CustomContent, Message, Role, frozen_data
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
    messages, past = list[Message](), _Past(turns, incoming)
    for position, item in enumerate(incoming[:-1] if resuming else incoming):
        if item.plain is not None:
            messages.append(item.plain)
        elif item.role is Role.ASSISTANT:
            past.add(messages, position)
        else:
            messages.append(user_message(item))
    if not resuming:
        return repaired(messages)
    return [*repaired(messages[: past.start]), *past.turn.history]


class _Past:
    def __init__(self, turns: Turns, incoming: Sequence[Incoming]) -> None:
        self._turns, self._incoming = turns, incoming
        self.turn, self._position = _NO_TURN, 0  # the last turn that was added, and its position in the request
        self.start = 0  # its place among the messages

    def add(self, messages: list[Message], position: int) -> None:
        turn, item = self._turns.get(position, _NO_TURN), self._incoming[position]
        if self.turn.turn and self.turn.turn in (turn.resumes, turn.turn) and position == self._position + 2:
            del messages[self.start :]
        self.turn, self.start, self._position = turn, len(messages), position
        if turn.turn:
            messages += closed(turn.history, {call.call_id for call in turn.pending}, self._result(turn, position))
        elif turn.history:
            messages += with_turn(turn.history, item.text())
        else:
            unsourced = position not in self._turns and item.state != NO_TOOLS
            messages.append(Message(Role.ASSISTANT, item.text(), unsourced=unsourced))
        pictures = tuple(file for file in item.attachments if file.is_stored_picture) if item.attachments else ()
        if pictures and messages[-1].role is Role.ASSISTANT:
            messages[-1] = replace(messages[-1], custom_content=CustomContent(pictures))

    def _result(self, turn: TurnState, position: int) -> str:
        reply = self._incoming[position + 1] if position + 1 < len(self._incoming) else None
        answers = decision_of(reply, turn.codes) if reply is not None else None
        return PERHAPS_RUN if any(answer.allowed for answer in answers or ()) else NOT_APPROVED


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
    lines = [_line(attachment) for attachment in attachments]
    return "\n".join([ATTACHED, *lines]) if lines else ""


def _line(attachment: Attachment) -> str:
    place = attachment.url or attachment.reference_url or "(its content is not stored as a file)"
    title = " ".join((attachment.title or place.rsplit("/", 1)[-1]).split())
    return f"- {title} ({attachment.type or 'unknown type'}): {place}"


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
