"""The grammar of decisions on generated texts: nothing but a decision decides anything."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from task.approvals.approvals import codes_in, read_reply

WAITING = ["k7f3", "p2x9", "m4q5"]
DECISIONS = ("approve k7f3, deny P2X9 because it is old; always m4q5", "yes", "deny all", "always allow k7f3 and m4q5")
WRITTEN = ["approve", "ALWAYS", "always allow", "deny", "no", "yes", "all", "k7f3", "P2X9", "m4q5", "because", "please"]
BETWEEN = [" ", "  ", "\n", ";", ",", ", ", " and ", "&", ":", ".", "!", "-", "'", "\t", "\r", "\0", "é", "\u200b", "ſ"]
piece = st.sampled_from([*WRITTEN, *BETWEEN])
soup = st.one_of(st.text(max_size=60), st.lists(piece, max_size=25).map("".join))


@pytest.mark.fault("approval: a reply that only looks like an approval")
@settings(deadline=None, max_examples=300)
@given(soup, st.lists(st.sampled_from([*WAITING, "a1a1"]), min_size=1, unique=True))
@example(DECISIONS[0], WAITING)
def test_only_a_decision_decides_and_then_about_all_calls(text: str, codes: Sequence[str]) -> None:
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


@pytest.mark.fault("approval: a reply that only looks like an approval")
@settings(deadline=None, max_examples=150)
@given(st.sampled_from(DECISIONS), st.characters().filter(lambda mark: mark not in " \t\r\n"))
def test_words_before_a_decision_make_it_none(decision: str, before: str) -> None:
    assert codes_in(decision) is not None
    assert codes_in(before + decision) is None
