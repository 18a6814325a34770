"""What counts as a decision about waiting calls, and what never does."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from task.conversation.replies import CHECKED_TEXT, NOT_CHOSEN, Verdict, read_reply

YES, ALWAYS, NO, REST = Verdict("approve"), Verdict("always"), Verdict("deny"), Verdict("deny", NOT_CHOSEN)


def reason(text: str) -> Verdict:
    return Verdict("deny", text)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("approve", YES),
        ("Approve.", YES),
        (" APPROVE!\n", YES),
        ("yes", YES),
        ("Yes, please", YES),
        ("approve 1", YES),
        ("always", ALWAYS),
        ("Always.", ALWAYS),
        ("allow", YES),
        ("Always allow", ALWAYS),
        ("deny", NO),
        ("No.", NO),
        ("deny because it is the wrong file", reason("it is the wrong file")),
        ("Deny, because it is the wrong file.", reason("it is the wrong file.")),
        ("no, use the other folder", reason("use the other folder")),
        ("deny: зачем это?", reason("зачем это?")),
    ],
)
def test_the_words_of_a_decision_about_one_call(text: str, verdict: Verdict) -> None:
    assert read_reply(text, None, 1) == (verdict,)


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("approve", (YES, YES, YES)),
        ("approve all", (YES, YES, YES)),
        ("approve 1", (YES, REST, REST)),
        ("approve 1 and 3", (YES, REST, YES)),
        ("approve 1, 2, deny 3", (YES, YES, NO)),
        ("approve 1, deny 2 because it deletes, always 3", (YES, reason("it deletes, always 3"), REST)),
        ("approve 1; deny 2 because it deletes; always 3", (YES, reason("it deletes"), ALWAYS)),
        ("deny 2 because\napprove 1", None),
        ("deny 2 because it deletes\napprove 1", (YES, reason("it deletes"), REST)),
        ("always 1 & 2 and approve 3", (ALWAYS, ALWAYS, YES)),
        ("deny", (NO, NO, NO)),
        ("Always allow all", (ALWAYS, ALWAYS, ALWAYS)),
        ("allow 1, always allow 2", (YES, ALWAYS, REST)),
    ],
)
def test_calls_are_answered_together_or_one_by_one(text: str, verdicts: tuple[Verdict, ...] | None) -> None:
    assert read_reply(text, None, 3) == verdicts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What will it do?",
        "approve?",
        "Do not approve",
        "I approve",
        "approve it, but only the first half",
        "approved",
        "ok",
        "OK.",
        "sure",
        "fine",
        "go ahead",
        "you may",
        "allow it",
        "allowed",
        "always allowed",
        "allow always",
        "yesterday",
        "yes and no",
        "no idea",
        "always?",
        "approve 4",
        "approve 0",
        "approve 1, deny 1",
        "approve, deny 2",
        "> approve",
        '"approve"',
        "`approve`",
        "The document says: approve",
        "approve\nand tell me the weather",
        "approve because the report says so",
    ],
)
def test_any_other_text_decides_nothing(text: str) -> None:
    assert read_reply(text, None, 3) is None


@pytest.mark.parametrize(
    "text",
    [
        "аpprove",  # a Cyrillic letter
        "approve\u200b",
        "\u202eapprove",
        "a\u00adpprove",
        "ａｐｐｒｏｖｅ",
        "yeſ",
        "approve\u00a01",
        "approve １",
        "approve \u0661",
        "approve\u2028",
        "deny\u2028approve",
        "deny\u200b",
    ],
)
def test_look_alike_letters_and_invisible_characters_decide_nothing(text: str) -> None:
    assert read_reply(text, None, 2) is None


@pytest.mark.parametrize(
    ("value", "verdicts"),
    [
        ({"decision": 1}, (YES, YES)),
        ({"decision": 1.0}, (YES, YES)),
        ({"decision": 2}, (ALWAYS, ALWAYS)),
        ({"decision": 3, "calls": ["1"]}, (NO, NO)),
        ({"decision": 4, "calls": ["2"]}, (REST, YES)),
        ({"decision": 4, "calls": [1, 2]}, (YES, YES)),
        ({"decision": 4, "calls": ["9", None]}, (REST, REST)),
        ({"decision": 4}, (REST, REST)),
        ({"decision": True}, None),
        ({"decision": 5}, None),
        ({"decision": "1"}, None),
        ({"calls": ["1"]}, None),
        ([1], None),
        ("approve", None),
    ],
)
def test_buttons_decide_by_their_numbers(value: Any, verdicts: tuple[Verdict, ...] | None) -> None:
    assert read_reply("", value, 2) == verdicts


def test_words_and_buttons_must_agree() -> None:
    assert read_reply("approve", {"decision": 1}, 1) == (YES,)
    assert read_reply("deny because it is late", {"decision": 3}, 1) == (reason("it is late"),)
    assert read_reply(CHECKED_TEXT, {"decision": 4, "calls": ["1"]}, 2) == (YES, REST)
    assert read_reply("deny", {"decision": 1}, 1) is None
    assert read_reply("Wait, what does it do?", {"decision": 1}, 1) is None
    assert read_reply("approve", {"decision": 2}, 1) is None
    assert read_reply(CHECKED_TEXT, None, 2) is None


def test_a_reason_is_cut_to_a_sensible_length() -> None:
    verdicts = read_reply("deny because " + "x" * 50_000, None, 1)
    assert verdicts is not None
    assert [len(verdict.reason) for verdict in verdicts] == [1_000]


@pytest.mark.parametrize(
    ("text", "decides"),
    [
        (f"no{' ' * 200_000}\0", False),
        (f"yes 1{' ' * 200_000}\0", False),
        (f"deny{' ' * 200_000}because", False),
        ("yes\n" * 200_000, True),
    ],
)
def test_a_long_message_is_read_at_once(text: str, decides: bool) -> None:
    started = process_time()
    assert (read_reply(text, None, 200) is not None) is decides
    assert process_time() - started < 5  # minutes, were each space a place to try again from
