"""What comes from the user: the messages of a request, and answers about waiting calls."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Literal, cast
from urllib.parse import unquote

from task.conversation.messages import (
    NOT_APPROVED,
    PERHAPS_RUN,
    Attachment,
    Message,
    Role,
    frozen_data,
    repaired,
    with_turn,
)
from task.conversation.state import NO_TOOLS, TurnState


@frozen_data
class Incoming(Message):
    """One message of a request with DIAL's additions; `state` and `form_value` are not validated."""

    state: Mapping[str, Any] | None = None
    plain: Message | None = None  # an assistant or tool message that came with calls, as it is
    form_value: Any = None


ATTACHED = "Attached files:"  # the heading of the list of attachments in a message
_NO_TURN = TurnState()  # shared: most messages of a long conversation have no state


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


def conversation(
    incoming: Sequence[Incoming], turns: Mapping[int, TurnState], *, resuming: bool = False
) -> list[Message]:
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
            messages += repaired(turn.history, missing={call.call_id: result for call in turn.pending})
        elif turn.history:
            messages += with_turn(turn.history, item.text())
        else:
            unsourced = position not in turns and item.state != NO_TOOLS
            messages.append(Message(Role.ASSISTANT, item.text(), unsourced=unsourced))
        pictures = tuple(file for file in item.attachments if file.is_stored_picture) if item.attachments else ()
        if pictures and messages[-1].role is Role.ASSISTANT:
            messages[-1] = replace(messages[-1], attachments=pictures)
    return [*repaired(messages[:start]), *before.history] if resuming else repaired(messages)


def user_message(message: Message) -> Message:
    """The user's message with its attachments, which are also listed at the end of the text."""
    files, content = message.attachments, message.content if message.content is not None else ""
    if files:
        note = attachment_note(files)
        if isinstance(content, list):
            content = [*content, {"type": "text", "text": note}]
        else:
            content = f"{content}\n\n{note}" if content else note
    return Message(message.role, content, attachments=files, scrub_pii=message.scrub_pii)


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


Choice = Literal["approve", "always", "deny"]

DECISION, CALLS = "decision", "calls"  # the fields of the form
CHECKED = 4  # the button that approves the checked calls and no other
CHECKED_TEXT = "approve the checked ones"
BUTTONS: Mapping[int, Choice] = {1: "approve", 2: "always", 3: "deny", CHECKED: "approve"}
NOT_CHOSEN = "the user did not approve it"
REASON_CHARS = 1_000
DECISION_CHARS = 20_000  # a longer text is no decision

# The words of the question, of its buttons, and a plain yes or no. "OK" or "sure" may only mean "I see".
_WORDS: Mapping[str, Choice] = {
    "approve": "approve",
    "allow": "approve",
    "yes": "approve",
    "always allow": "always",
    "always": "always",
    "deny": "deny",
    "no": "deny",
}
_LETTERS, _DIGITS = "bcdfghjkmnpqrstvwxz", "23456789"  # none that looks like another
# ASCII only: look-alike letters or invisible characters must not make a decision. Possessive (`++`, `?+`) where spaces
# may follow each other: otherwise a long row of them would be tried at each of its positions.
_CODE = r"[a-z]\d[a-z]\d"
_AND = r"\s*+(?:,(?:\s*+and\b)?|\band\b|&)\s*+"
_CLAUSE = re.compile(rf"({'|'.join(_WORDS)})(?:\s+(all|{_CODE}(?:{_AND}{_CODE})*))?(?![\w'])", re.ASCII | re.IGNORECASE)
_NAMED = re.compile(_CODE, re.ASCII)
_JOIN = re.compile(_AND, re.ASCII | re.IGNORECASE)
_REASON = re.compile(r"\s*+(?:,?+\s*+because\b|[,:.-])\s*+([^\s.!].*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_END = re.compile(r"(?:\s*+,?+\s*+please)?+\s*+[.!]?+\s*+", re.ASCII | re.IGNORECASE)
_SEGMENTS = re.compile(r"[\n;]")
_EVERY = ""  # in place of a code: the clause is about every call


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
    arguments: Mapping[str, Any] | None = None
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


_NOT_CHOSEN = Answer(False, NOT_CHOSEN, by_user=False)


def read_reply(text: str, form_value: Any, codes: Sequence[str]) -> tuple[Answer, ...] | None:
    """One answer for each waiting call, in the order of their `codes`; None: this decides nothing about them.

    Words without a code are about every call. Calls that the reply does not name are denied. A code that is not among
    `codes` makes the whole reply void, and so do words and buttons that contradict each other.
    """
    from_text, from_form = None, _of_form(form_value, len(codes))
    found = _decision(text)
    if found and codes and found.keys() <= {_EVERY, *codes}:
        rest = found.get(_EVERY, _NOT_CHOSEN)
        from_text = tuple(found.get(code, rest) for code in codes)
    if from_form is None:
        return from_text
    if text.strip().lower() in ("", CHECKED_TEXT):
        return from_form
    same = from_text is not None and [replace(item, reason="") for item in from_text] == [
        replace(item, reason="") for item in from_form
    ]
    return from_text if same else None


def words_of(message: Message) -> str:
    """The user's text; empty where the message has parts, because an answer is text only."""
    return message.content if message.role is Role.USER and isinstance(message.content, str) else ""


def codes_in(text: str) -> tuple[str, ...] | None:
    """The codes that a decision in words names, in their order; none where it is about every call.

    None: the text is not a decision.
    """
    found = _decision(text)
    return None if found is None else tuple(code for code in found if code != _EVERY)


def typed_answer(line: str) -> Answer | None:
    """The answer in a line at a terminal: yes, always, or no with a reason; None: none of these."""
    word, _, rest = line.strip().partition(" ")
    match word.lower().rstrip(",.:"):
        case "y" | "yes" | "approve" if not rest:
            return Answer(True)
        case "a" | "always" if not rest:
            return Answer(True, always=True)
        case "n" | "no" | "deny":
            return Answer(False, rest.strip().removeprefix("because ").strip())
        case _:
            return None


def _of_form(value: Any, count: int) -> tuple[Answer, ...] | None:
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, Any]", value)
    pressed = fields.get(DECISION)
    if isinstance(pressed, bool) or not isinstance(pressed, int | float) or pressed not in BUTTONS:
        return None
    choice = BUTTONS[int(pressed)]
    if pressed != CHECKED:
        return (Answer.of(choice),) * count
    checked = fields.get(CALLS)
    numbers = {str(item) for item in cast("list[Any]", checked)} if isinstance(checked, list) else set[str]()
    return tuple(Answer.of(choice) if str(number) in numbers else _NOT_CHOSEN for number in range(1, count + 1))


def _decision(text: str) -> Mapping[str, Answer] | None:
    # The answers by codes; None also where two contradict each other, or one is about every call and another is not.
    text = text.strip(" \t\r\n")
    if len(text) > DECISION_CHARS or _CLAUSE.match(text) is None:  # most messages, some of them long
        return None
    found: dict[str, Answer] = {}
    for segment in _SEGMENTS.split(text):
        line, place = segment.strip(" \t\r"), 0
        while place < len(line) or not line:
            if (clause := _CLAUSE.match(line, place)) is None:
                return None
            choice, place, reason = _WORDS[clause[1].lower()], clause.end(), ""
            join = _JOIN.match(line, place)
            if join and _CLAUSE.match(line, join.end()):
                place = join.end()
            elif _END.fullmatch(line, place):
                place = len(line)
            elif choice == "deny" and (because := _REASON.fullmatch(line, place)):
                place, reason = len(line), because[1].strip()[:REASON_CHARS]
            else:
                return None
            answer = Answer.of(choice, reason)
            codes = _NAMED.findall((clause[2] or "").lower())
            if any(found.setdefault(code, answer) != answer for code in codes or (_EVERY,)):
                return None
    return found if _EVERY not in found or len(found) == 1 else None
