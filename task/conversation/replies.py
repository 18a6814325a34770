"""The user's answer about waiting calls: what it is, and how it is read from words, from a form, or from a terminal."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from task.conversation.messages import Message, Role

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


def read_reply(text: str, form_value: Any, codes: Sequence[str]) -> tuple[Answer, ...] | None:
    """One answer for each waiting call, in the order of their `codes`; None: this decides nothing about them.

    Words without a code are about every call. Calls that the reply does not name are denied. A code that is not among
    `codes` makes the whole reply void, and so do words and buttons that contradict each other.
    """
    from_text, from_form = None, _of_form(form_value, len(codes))
    found = _decision(text)
    if found and codes and found.keys() <= {_EVERY, *codes}:
        rest = found.get(_EVERY, Answer(False, NOT_CHOSEN, by_user=False))
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


_Clause = tuple[tuple[str, ...], Answer]  # the codes of the calls (none: every call), and the answer about them


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
    rest = Answer(False, NOT_CHOSEN, by_user=False)
    return tuple(Answer.of(choice) if str(number) in numbers else rest for number in range(1, count + 1))


def _decision(text: str) -> Mapping[str, Answer] | None:
    # The answers by codes; None also where two contradict each other, or one is about every call and another is not.
    text = text.strip(" \t\r\n")
    if len(text) > DECISION_CHARS or _CLAUSE.match(text) is None:  # most messages, some of them long
        return None
    found: dict[str, Answer] = {}
    for segment in _SEGMENTS.split(text):
        clauses = _clauses(segment.strip(" \t\r"))
        if clauses is None:
            return None
        for codes, answer in clauses:
            if any(found.setdefault(code, answer) != answer for code in codes or (_EVERY,)):
                return None
    return found if _EVERY not in found or len(found) == 1 else None


def _clauses(segment: str) -> list[_Clause] | None:
    clauses: list[_Clause] = []
    position = 0
    while clause := _CLAUSE.match(segment, position):
        choice, position = _WORDS[clause[1].lower()], clause.end()
        codes = tuple(_NAMED.findall((clause[2] or "").lower()))
        if _END.fullmatch(segment, position):
            return [*clauses, (codes, Answer.of(choice))]
        join = _JOIN.match(segment, position)
        if join and _CLAUSE.match(segment, join.end()):
            clauses.append((codes, Answer.of(choice)))
            position = join.end()
            continue
        reason = _REASON.fullmatch(segment, position) if choice == "deny" else None
        return [*clauses, (codes, Answer.of(choice, reason[1].strip()[:REASON_CHARS]))] if reason else None
    return None
