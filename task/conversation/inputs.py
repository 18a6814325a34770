"""What comes from the user: the messages of a request with their files and headers."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from task.conversation.inner import outer_id
from task.conversation.messages import (
    CUT,
    NOT_APPROVED,
    PERHAPS_RUN,
    Attachment,
    Message,
    Role,
    frozen_data,
    repaired,
    with_turn,
)
from task.conversation.state import TurnState


@frozen_data
class Incoming(Message):
    """One message of a request with DIAL's additions; `state` and `form_value` are not validated.

    An assistant's message is `unsourced` where it came without our state and needs no change for the model.
    """

    state: Mapping[str, object] | None = None
    form_value: object = None


MOST_MESSAGES = 5_000  # to read and check more of them would hold the event loop
QUOTED = "quoted here as the user chose it, and not written by the user"
UNKNOWN = "unknown type"
MOST_QUOTED = 40_000  # characters of one attachment
ATTACHED = "Attached files:"  # the heading of the list of attachments in a message
_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL  # an enum member is slow to look up
_NO_TURN = TurnState()  # shared: most messages of a long conversation have no state


def conversation(
    incoming: Sequence[Incoming],
    turns: Mapping[int, TurnState],
    decision_of: Callable[[Incoming, Sequence[str]], Sequence[Answer] | None],
    no_tools: Callable[[str], Mapping[str, object]],
    *,
    resuming: bool = False,
) -> list[Message]:
    """The whole conversation as a model must see it, without a system prompt.

    `turns` is what the messages' states hold, by the messages' position, `no_tools` the state of an answer that called
    no tool, by its text. `decision_of`: what a message decides about waiting calls by their codes. With `resuming` the
    last message decides about the suspended turn before it: the conversation then ends with that turn's tool history,
    its waiting calls unanswered.

    A turn that resumed a suspended one replaces both: the question to the user, which the model never wrote, and the
    decision are left out. So are a decision that named codes of other questions, and its answer, which asks the same
    question again.
    """
    messages = list[Message]()
    before, place, start = _NO_TURN, 0, 0  # the last turn that was added, and its places in the request and in messages
    for position, item in enumerate(incoming[:-1] if resuming else incoming):
        if (role := item.role) is not _ASSISTANT or item.unsourced:  # nearly all of a long history
            is_done = item.unsourced or role is _TOOL or not (item.attachments or item.content is None)
            messages.append(item if is_done else user_message(item))
            continue
        turn = turns.get(position, _NO_TURN)
        if before.turn and before.turn in (turn.resumes, turn.turn) and position == place + 2:
            del messages[start:]
        before, place, start = turn, position, len(messages)
        if turn.turn:
            answers = decision_of(incoming[position + 1], turn.codes) if position + 1 < len(incoming) else None
            result = PERHAPS_RUN if any(answer.allowed for answer in answers or ()) else NOT_APPROVED
            messages += repaired(turn.history, missing={outer_id(call.call_id): result for call in turn.pending})
        elif turn.history:
            messages += with_turn(turn.history, item.text())
        else:
            unsourced = position not in turns and item.state != no_tools(item.text())
            messages.append(Message(_ASSISTANT, item.text(), unsourced=unsourced, place=item.place))
        if turn.history:
            messages[-1] = replace(messages[-1], place=item.place)
        pictures = tuple(file for file in item.attachments if file.is_stored_picture) if item.attachments else ()
        if pictures and messages[-1].role is _ASSISTANT:
            messages[-1] = replace(messages[-1], attachments=pictures)
    return [*repaired(messages[:start]), *before.history] if resuming else repaired(messages)


def user_message(message: Message) -> Message:
    """The user's message with its attachments, which are also listed at the end of the text.

    It counts as text from outside where it quotes any.
    """
    files, content = message.attachments, message.content
    note = attachment_note(files)
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": note}]
    else:
        content = "\n\n".join(filter(None, (content, note)))
    outside = any(item.quoted for item in files)
    return Message(
        message.role, content, attachments=files, unsourced=outside, scrub_pii=message.scrub_pii, place=message.place
    )


def attachment_note(attachments: Sequence[Attachment]) -> str:
    """The attachments as lines that the model can use in calls: `- title (type): url`, with the text of those that have
    no file; empty without attachments."""
    lines = [ATTACHED]
    for item in attachments:
        quoted = item.quoted
        place = item.url or item.reference_url or (QUOTED if quoted else "(its content is not stored as a file)")
        title, kind = item.title or place.rsplit("/", 1)[-1], item.type or UNKNOWN
        lines.append(f"- {' '.join(title.split())} ({' '.join(kind.split())}): {place}")
        if len(quoted) > MOST_QUOTED:
            quoted = f"{quoted[:MOST_QUOTED]}\n{CUT}{len(quoted) - MOST_QUOTED} more characters]"
        lines += [f"> {line}" for line in quoted.splitlines()]  # which no text inside can end
    return "\n".join(lines) if attachments else ""


# What the HTTP door puts before the name of a file that was sent to it: a digest, and a purpose.
SENT = re.compile(r"^[0-9a-f]{16}(?:-(assistants|batch|fine-tune|vision|evals))?_(?=.)")
_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\]+")
_LONGEST = 120


def shown_name(url: str) -> str:
    """The name of the file at a URL, as its sender gave it."""
    return SENT.sub("", unquote(PurePosixPath(url).name))


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


# What changes once a day ends the part of a prompt that providers keep; what changes with each message comes last.
TODAY = "Today is {day} in the time zone {zone}. The time of day stands behind the newest message."
TIME_OF_DAY = "[Note from the system, not from the user: it is {time}.]"
_TIMES = re.compile(
    r"(?:\A|\n\n)Today is [^.\n]++\. The time of day stands behind the newest message\."
    r"|\n{0,2}\[Note from the system, not from the user: it is [^\]\n]++\]\Z"
)
_ZONE = re.compile(r"[A-Z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,31}){0,2}")
NO_ZONE = "X-Timezone had no effect: it does not name a time zone"


def timed(
    messages: Sequence[Message], now: float, headers: Mapping[str, str], zone: str, warn: Callable[[str], object]
) -> tuple[list[Message], str]:
    """The messages with the time of day behind the user's newest one, and the date for the prompt before them.

    `now` is Unix time. The zone is that of the header `X-Timezone`, else `zone`; where the header names none, `warn`
    is called.
    """
    named, chosen = "", None
    for name, value in headers.items():
        named = value if name.lower() == "x-timezone" else named
    if _ZONE.fullmatch(named):
        with suppress(KeyError, ValueError, OSError):  # there is none, or a folder of zones
            chosen = ZoneInfo(named)
    if named and chosen is None:
        warn(NO_ZONE)
    time, today = _written(int(now // 60), zone if chosen is None else chosen.key)
    return with_note(messages, time), today


@lru_cache(maxsize=1_000)
def _written(minute: int, zone: str) -> tuple[str, str]:
    there = datetime.fromtimestamp(60 * minute, ZoneInfo(zone))
    today = TODAY.format(day=f"{there:%A}, {there.day} {there:%B %Y}", zone=there.tzinfo)
    return TIME_OF_DAY.format(time=f"{there:%H:%M, UTC%z}"), today


def with_note(messages: Sequence[Message], note: str) -> list[Message]:
    """The messages with a note behind the user's newest one."""
    result = list(messages)
    for place in reversed(range(len(result))):
        if result[place].role is Role.USER:
            # Not in a message of its own: some models refuse two of the user's in a row.
            content, part = result[place].content or "", {"type": "text", "text": note}
            content = [*content, part] if isinstance(content, list) else f"{content}\n\n{note}"
            result[place] = replace(result[place], content=content)
            break
    return result


def without_time(text: str) -> str:
    """A prompt or a message without the date and the time."""
    return _TIMES.sub("", text)


Choice = Literal["approve", "always", "deny"]
_LETTERS, _DIGITS = "bcdfghjkmnpqrstvwxz", "23456789"  # none that looks like another


def new_code(taken: Collection[str] = ()) -> str:
    """A short code for a question, such as `k7f3`, which is not among `taken`.

    There are 23,104 of them, and none is a word.
    """
    while (code := "".join(secrets.choice(letters) for letters in (_LETTERS, _DIGITS) * 2)) in taken:
        continue
    return code


@dataclass(frozen=True, slots=True)
class Answer:
    """What the user decided about one call, at whichever door. A denial may have a reason.

    `arguments` replace those of the call, whose digest is then `grant`; `always` also allows the wider calls that the
    question described. Where the user decided nothing, `by_user` is false and the reason is the whole sentence.
    """

    allowed: bool
    reason: str = ""
    arguments: Mapping[str, object] | None = None
    grant: str | None = None
    always: bool = False
    by_user: bool = True

    @classmethod
    def of(cls, choice: Choice, reason: str = "") -> Answer:
        """The answer that a word or a button gives; only a denial keeps the reason."""
        return cls(False, reason) if choice == "deny" else cls(True, always=choice == "always")

    @property
    def remark(self) -> str:
        """The reason as the API reports it."""
        return "always" if self.always else self.reason
