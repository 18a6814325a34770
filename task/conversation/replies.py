"""Read a person's decision about calls that wait for it: from the words of a reply, or from the buttons of a form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

Choice = Literal["approve", "always", "deny"]

DECISION, CALLS = "decision", "calls"  # the fields of the form
CHECKED = 4  # the button that approves the checked calls and no other
CHECKED_TEXT = "approve the checked ones"
BUTTONS: Mapping[int, Choice] = {1: "approve", 2: "always", 3: "deny", CHECKED: "approve"}
NOT_CHOSEN = "the user did not approve it"
REASON_CHARS = 1_000

# The words of the question, of its buttons, and a plain yes or no. "OK" or "sure" may mean no more than "I see".
_WORDS: Mapping[str, Choice] = {
    "approve": "approve",
    "allow": "approve",
    "yes": "approve",
    "always allow": "always",
    "always": "always",
    "deny": "deny",
    "no": "deny",
}
# ASCII only: a letter that merely looks like one of these, or an invisible sign between them, makes no decision.
_NUMBERS = r"\d{1,3}(?:\s*(?:,\s*and|,|and|&)\s*\d{1,3})*"
_CLAUSE = re.compile(rf"({'|'.join(_WORDS)})(?:\s+(all|{_NUMBERS}))?(?![\w'])", re.ASCII | re.IGNORECASE)
_JOIN = re.compile(r"\s*(?:,\s*and|,|and|&)\s*", re.ASCII | re.IGNORECASE)
# Nothing is given back here (`++`, `?+`): a long row of spaces would be tried at each of its places.
_REASON = re.compile(r"\s*+(?:,?+\s*+because\b|[,:.-])\s*+([^\s.!].*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_END = re.compile(r"(?:\s*+,?+\s*+please)?+\s*+[.!]?+\s*+", re.ASCII | re.IGNORECASE)
_SEGMENTS = re.compile(r"[\n;]")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a person decided about one call; a denial may have a reason."""

    choice: Choice
    reason: str = ""


_Told = tuple[tuple[int, ...], Verdict]  # the numbers that a clause names (none: all), and what it says of them


def read_reply(text: str, form_value: Any, count: int) -> tuple[Verdict, ...] | None:
    """One verdict for each of the `count` waiting calls, in their order; None: this is not a decision.

    Calls that the reply does not name are denied. Where words and buttons say different things, nothing is decided.
    """
    from_text, from_form = _of_text(text, count), _of_form(form_value, count)
    if from_form is None:
        return from_text
    if text.strip().lower() in ("", CHECKED_TEXT):
        return from_form
    same = from_text is not None and [item.choice for item in from_text] == [item.choice for item in from_form]
    return from_text if same else None


def is_reply(text: str) -> bool:
    """Whether the text says the words of a decision, however many calls it is about."""
    return bool(_told(text))


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
    for numbers, verdict in _told(text):
        for number in numbers or range(1, count + 1):
            known = found.setdefault(number, verdict)
            if not 1 <= number <= count or (known is not verdict and known != verdict):
                return None
    return _complete(found, count) if found else None


def _told(text: str) -> set[_Told]:
    """All that the text says, once; nothing where a line of it is no decision."""
    told: set[_Told] = set()
    text = text.strip(" \t\r\n")
    if _CLAUSE.match(text) is None:  # most messages, some of them long
        return told
    for segment in _SEGMENTS.split(text):
        clauses = _clauses(segment.strip(" \t\r"))
        if clauses is None:
            return set()
        told.update(clauses)
    return told


def _clauses(segment: str) -> list[_Told] | None:
    """The clauses of one line; None where a word is no part of one."""
    clauses: list[_Told] = []
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
    numbers: Iterable[int] = range(1, count + 1)
    rest = Verdict("deny", NOT_CHOSEN)
    return tuple(found.get(number, rest) for number in numbers)
