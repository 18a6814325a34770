"""The grammar of decisions on generated texts: what is written is read back, and nothing else decides anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task.conversation.inputs import NOT_CHOSEN, Answer, Choice, codes_in, read_reply

EXAMPLES = 150
WORDS: Mapping[Choice, tuple[str, ...]] = {
    "approve": ("approve", "allow", "yes"),
    "always": ("always", "always allow"),
    "deny": ("deny", "no"),
}
Decision = tuple[str, tuple[str, ...], tuple[Answer, ...]]  # its text, the codes in its order, and its verdicts

code = st.from_regex(r"[a-z][0-9][a-z][0-9]", fullmatch=True)
some_codes = st.lists(code, min_size=1, max_size=8, unique=True)
WRITTEN = ["approve", "ALWAYS", "always allow", "deny", "no", "yes", "all", "k7f3", "P2X9", "m4q5", "because", "please"]
BETWEEN = [" ", "  ", "\n", ";", ",", ", ", " and ", "&", ":", ".", "!", "-", "'", "\t", "\r", "\0", "é", "\u200b", "ſ"]
piece = st.sampled_from([*WRITTEN, *BETWEEN])
soup = st.one_of(st.text(max_size=60), st.lists(piece, max_size=25).map("".join))
# A reason extends to the end of its line, and `;` ends a line.
line = st.text(st.characters(exclude_characters="\n;", exclude_categories=["Cs"]), min_size=1, max_size=40)
reason = line.map(str.strip).filter(lambda text: text and text[0] not in ".!")


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    """A decision in words about each of some codes."""
    codes = tuple(draw(some_codes))
    lines: list[str] = []
    clauses: list[str] = []
    verdicts: list[Answer] = []
    for name in codes:
        choice = draw(st.sampled_from(list(WORDS)))
        because = draw(reason) if choice == "deny" and draw(st.booleans()) else ""
        shown = draw(st.sampled_from((name, name.upper())))
        word = draw(st.sampled_from([form(word) for word in WORDS[choice] for form in (str, str.upper, str.title)]))
        clauses.append(f"{word} {shown} because {because}" if because else f"{word} {shown}")
        verdicts.append(Answer.of(choice, because))
        if because or draw(st.booleans()):  # nothing can follow a reason on its line
            lines.append(draw(st.sampled_from((", ", " and ", ", and ", " & "))).join(clauses))
            clauses = []
    lines += [", ".join(clauses)] if clauses else []
    return draw(st.sampled_from(("\n", ";", "; "))).join(lines), codes, tuple(verdicts)


def is_read_back(decision: Decision, order: Sequence[str]) -> None:
    """In whatever order the codes' calls wait; a call that is not named is denied."""
    text, codes, verdicts = decision
    by_code = dict(zip(codes, verdicts, strict=True))
    assert codes_in(text) == codes
    asked = [*order, "a1a1"] if "a1a1" not in codes else list(order)
    expected = [by_code.get(name, Answer(False, NOT_CHOSEN, by_user=False)) for name in asked]
    assert read_reply(text, None, asked) == tuple(expected)
    assert read_reply(text, None, [name for name in asked if name != codes[0]]) is None


def is_consistent(text: str, codes: Sequence[str]) -> None:
    """What is no decision decides nothing; a decision decides about all calls, if it names no others."""
    named, verdicts = codes_in(text), read_reply(text, None, codes)
    if named is None or not set(named) <= set(codes):
        assert verdicts is None
        return
    assert verdicts is not None
    assert len(verdicts) == len(codes)
    for name, verdict in zip(codes, verdicts, strict=True):
        assert not verdict.allowed or not named or name in named
    first = text.split()[0].lower()
    assert first.startswith(("approve", "allow", "yes", "always", "deny", "no"))
    assert text.isascii() or not all(verdict.allowed for verdict in verdicts)  # the reason of one


@settings(deadline=None, max_examples=EXAMPLES)
@given(decisions())
def test_a_decision_is_read_back_as_it_was_written(decision: Decision) -> None:
    is_read_back(decision, sorted(decision[1]))


@pytest.mark.fault("approval: a reply that only looks like an approval")
@settings(deadline=None, max_examples=EXAMPLES)
@given(soup, some_codes)
def test_no_other_text_decides_anything(text: str, codes: list[str]) -> None:
    is_consistent(text, codes)
    is_consistent(text, ["k7f3", "p2x9", "m4q5"])


@pytest.mark.fault("approval: a reply that only looks like an approval")
@settings(deadline=None, max_examples=EXAMPLES)
@given(decisions(), st.characters().filter(lambda mark: mark not in " \t\r\n"))
def test_words_before_a_decision_make_it_none(decision: Decision, before: str) -> None:
    assert codes_in(before + decision[0]) is None
