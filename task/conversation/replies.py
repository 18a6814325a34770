"""Parse a person's decision about waiting calls: from the words of a reply, or from the buttons of a form."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

Choice = Literal["approve", "always", "deny"]

DECISION, CALLS = "decision", "calls"  # the fields of the form
CHECKED = 4  # the button that approves the checked calls and no other
CHECKED_TEXT = "approve the checked ones"
BUTTONS: Mapping[int, Choice] = {1: "approve", 2: "always", 3: "deny", CHECKED: "approve"}
NOT_CHOSEN = "the user did not approve it"
REASON_CHARS = 1_000

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
# ASCII only: look-alike letters or invisible characters must not make a decision.
_NUMBERS = r"\d{1,3}(?:\s*(?:,\s*and|,|and|&)\s*\d{1,3})*"
_CLAUSE = re.compile(rf"({'|'.join(_WORDS)})(?:\s+(all|{_NUMBERS}))?(?![\w'])", re.ASCII | re.IGNORECASE)
_JOIN = re.compile(r"\s*(?:,\s*and|,|and|&)\s*", re.ASCII | re.IGNORECASE)
# Possessive (`++`, `?+`): otherwise a long row of spaces would be tried at each of its positions.
_REASON = re.compile(r"\s*+(?:,?+\s*+because\b|[,:.-])\s*+([^\s.!].*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_END = re.compile(r"(?:\s*+,?+\s*+please)?+\s*+[.!]?+\s*+", re.ASCII | re.IGNORECASE)
_SEGMENTS = re.compile(r"[\n;]")


def new_code() -> str:
    """A short code for a question, such as `k7f3`; there are 23,104, and none of them is a word."""
    return "".join(secrets.choice(letters) for letters in (_LETTERS, _DIGITS) * 2)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a person decided about one call; a denial may have a reason."""

    choice: Choice
    reason: str = ""


_Clause = tuple[tuple[int, ...], Verdict]  # the numbers of the calls (none: all), and the verdict about them


def read_reply(text: str, form_value: Any, count: int) -> tuple[Verdict, ...] | None:
    """One verdict for each of the `count` waiting calls, in their order; None: this is not a decision.

    Calls that the reply does not name are denied. If words and buttons contradict each other, nothing is decided.
    """
    from_text, from_form = _of_text(text, count), _of_form(form_value, count)
    if from_form is None:
        return from_text
    if text.strip().lower() in ("", CHECKED_TEXT):
        return from_form
    same = from_text is not None and [item.choice for item in from_text] == [item.choice for item in from_form]
    return from_text if same else None


def is_reply(text: str) -> bool:
    """Whether the text has the words of a decision, however many calls it is about."""
    return bool(_clauses(text))


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
    return _complete({number: Verdict(choice) for number in range(1, count + 1) if str(number) in numbers}, count)


def _of_text(text: str, count: int) -> tuple[Verdict, ...] | None:
    found: dict[int, Verdict] = {}
    for numbers, verdict in _clauses(text):
        for number in numbers or range(1, count + 1):
            known = found.setdefault(number, verdict)
            if not 1 <= number <= count or (known is not verdict and known != verdict):
                return None
    return _complete(found, count) if found else None


def _clauses(text: str) -> set[_Clause]:
    found: set[_Clause] = set()
    text = text.strip(" \t\r\n")
    if _CLAUSE.match(text) is None:  # most messages, some of them long
        return found
    for segment in _SEGMENTS.split(text):
        clauses = _clauses_of_line(segment.strip(" \t\r"))
        if clauses is None:
            return set()
        found.update(clauses)
    return found


def _clauses_of_line(segment: str) -> list[_Clause] | None:
    clauses: list[_Clause] = []
    position = 0
    while position < len(segment) or not clauses:
        clause = _CLAUSE.match(segment, position)
        if clause is None:
            return None
        choice = _WORDS[clause[1].lower()]
        numbers = tuple(int(number) for number in re.findall(r"[0-9]+", clause[2] or ""))
        position = clause.end()
        if _END.fullmatch(segment, position):
            return [*clauses, (numbers, Verdict(choice))]
        join = _JOIN.match(segment, position)
        if join and _CLAUSE.match(segment, join.end()):
            clauses.append((numbers, Verdict(choice)))
            position = join.end()
            continue
        reason = _REASON.fullmatch(segment, position) if choice == "deny" else None
        return [*clauses, (numbers, Verdict(choice, reason[1].strip()[:REASON_CHARS]))] if reason else None
    return clauses


def _complete(found: Mapping[int, Verdict], count: int) -> tuple[Verdict, ...]:
    rest = Verdict("deny", NOT_CHOSEN)
    return tuple(found.get(number, rest) for number in range(1, count + 1))
