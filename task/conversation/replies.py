"""Parse a person's decision about waiting calls: from the words of a reply, or from the buttons of a form."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

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
class Verdict:
    """What a person decided about one call; a denial may have a reason."""

    choice: Choice
    reason: str = ""


def read_reply(text: str, form_value: Any, codes: Sequence[str]) -> tuple[Verdict, ...] | None:
    """One verdict for each waiting call, in the order of their `codes`; None: this decides nothing about them.

    Words without a code are about every call. Calls that the reply does not name are denied. A code that is not among
    `codes` makes the whole reply void, and so do words and buttons that contradict each other.
    """
    from_text, from_form = _of_text(text, codes), _of_form(form_value, len(codes))
    if from_form is None:
        return from_text
    if text.strip().lower() in ("", CHECKED_TEXT):
        return from_form
    same = from_text is not None and [item.choice for item in from_text] == [item.choice for item in from_form]
    return from_text if same else None


def codes_in(text: str) -> tuple[str, ...] | None:
    """The codes that a decision in words names, in their order; none where it is about every call.

    None: the text is not a decision.
    """
    found = _decision(text)
    return None if found is None else tuple(code for code in found if code != _EVERY)


_Clause = tuple[tuple[str, ...], Verdict]  # the codes of the calls (none: every call), and the verdict about them


def _of_form(value: Any, count: int) -> tuple[Verdict, ...] | None:
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, Any]", value)
    pressed = fields.get(DECISION)
    if isinstance(pressed, bool) or not isinstance(pressed, int | float) or pressed not in BUTTONS:
        return None
    choice = BUTTONS[int(pressed)]
    if pressed != CHECKED:
        return (Verdict(choice),) * count
    checked = fields.get(CALLS)
    numbers = {str(item) for item in cast("list[Any]", checked)} if isinstance(checked, list) else set[str]()
    rest = Verdict("deny", NOT_CHOSEN)
    return tuple(Verdict(choice) if str(number) in numbers else rest for number in range(1, count + 1))


def _of_text(text: str, codes: Sequence[str]) -> tuple[Verdict, ...] | None:
    found = _decision(text)
    if not found or not codes or not found.keys() <= {_EVERY, *codes}:
        return None
    rest = found.get(_EVERY, Verdict("deny", NOT_CHOSEN))
    return tuple(found.get(code, rest) for code in codes)


def _decision(text: str) -> Mapping[str, Verdict] | None:
    # The verdicts by codes; None also where two contradict each other, or one is about every call and another is not.
    text = text.strip(" \t\r\n")
    if len(text) > DECISION_CHARS or _CLAUSE.match(text) is None:  # most messages, some of them long
        return None
    found: dict[str, Verdict] = {}
    for segment in _SEGMENTS.split(text):
        clauses = _clauses(segment.strip(" \t\r"))
        if clauses is None:
            return None
        for codes, verdict in clauses:
            if any(found.setdefault(code, verdict) != verdict for code in codes or (_EVERY,)):
                return None
    return found if _EVERY not in found or len(found) == 1 else None


def _clauses(segment: str) -> list[_Clause] | None:
    clauses: list[_Clause] = []
    position = 0
    while clause := _CLAUSE.match(segment, position):
        choice, position = _WORDS[clause[1].lower()], clause.end()
        codes = tuple(_NAMED.findall((clause[2] or "").lower()))
        if _END.fullmatch(segment, position):
            return [*clauses, (codes, Verdict(choice))]
        join = _JOIN.match(segment, position)
        if join and _CLAUSE.match(segment, join.end()):
            clauses.append((codes, Verdict(choice)))
            position = join.end()
            continue
        reason = _REASON.fullmatch(segment, position) if choice == "deny" else None
        return [*clauses, (codes, Verdict(choice, reason[1].strip()[:REASON_CHARS]))] if reason else None
    return None
