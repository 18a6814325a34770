"""What counts as a decision about waiting calls, and what never does."""

from time import process_time
from typing import Any

import pytest

from task.approvals.approvals import DECISION_CHARS, codes_in, read_reply
from task.approvals.forms import LEFT_OPEN, NOT_CHOSEN, presses
from task.conversation.inputs import Answer, new_code

ONE, TWO, THREE = ("k7f3",), ("k7f3", "p2x9"), ("k7f3", "p2x9", "m4q5")
YES, ALWAYS, NO, REST = Answer.of("approve"), Answer.of("always"), Answer.of("deny"), NOT_CHOSEN
FIVE = ("k7f3", "p2x9", "m4q5", "b2b2", "z9z9")


def reason(text: str) -> Answer:
    return Answer(False, text)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("approve", YES),
        (" APPROVE!\n", YES),
        ("Yes, please", YES),
        ("Approve K7F3, please.", YES),
        ("Always allow k7f3!", ALWAYS),
        ("deny k7f3 because it is the wrong file", reason("it is the wrong file")),
        ("no k7f3: use the other folder", reason("use the other folder")),
        ("Always.", ALWAYS),
        ("Always allow", ALWAYS),
        ("No.", NO),
        ("Deny, because it is the wrong file.", reason("it is the wrong file.")),
        ("no, use the other folder", reason("use the other folder")),
        ("deny: зачем это?", reason("зачем это?")),
    ],
)
def test_the_words_of_a_decision_about_one_call(text: str, verdict: Answer) -> None:
    assert read_reply(text, None, ONE) == (verdict,)


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("approve", (YES, YES, YES)),
        ("approve all", (YES, YES, YES)),
        ("approve k7f3 and m4q5", (YES, REST, YES)),
        ("approve m4q5,k7f3,and p2x9", (YES, YES, YES)),
        ("approve k7f3 and p2x9, deny m4q5 because it is old", (YES, YES, reason("it is old"))),
        ("approve k7f3 and yes", None),
        ("approve, yes all", (YES, YES, YES)),
        ("approve k7f3, p2x9, deny m4q5", (YES, YES, NO)),
        ("approve k7f3, deny p2x9 because it deletes, always m4q5", (YES, reason("it deletes, always m4q5"), REST)),
        ("approve k7f3; deny p2x9 because it deletes; always m4q5", (YES, reason("it deletes"), ALWAYS)),
        ("deny p2x9 because\napprove k7f3", None),
        ("deny p2x9 because it deletes\napprove k7f3", (YES, reason("it deletes"), REST)),
        ("always k7f3 & p2x9 and approve m4q5", (ALWAYS, ALWAYS, YES)),
        ("Always allow all", (ALWAYS, ALWAYS, ALWAYS)),
        ("allow k7f3, always allow p2x9", (YES, ALWAYS, REST)),
    ],
)
def test_calls_are_answered_together_or_one_by_one(text: str, verdicts: tuple[Answer, ...] | None) -> None:
    assert read_reply(text, None, THREE) == verdicts


@pytest.mark.fault("approval: a reply that only looks like an approval")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "What will it do?",
        "Do not approve",
        "I approve",
        "approve it, but only the first half",
        "approved",
        "ok",
        "sure",
        "go ahead",
        "allow it",
        "allow always",
        "yes and no",
        "no idea",
        "approve z9z9",
        "approve k7f3; deny z9z9 because it is not mine",
        "approve 1 and 2",
        "approve k7f3andp2x9",
        "k7f3 approve",
        "Is it right to approve k7f3?",
        "> approve k7f3",
        '"approve k7f3"',
        "approve k7f3, deny k7f3",
        "approve, deny p2x9",
        '"approve"',
        "The document says: approve",
        "approve\nand tell me the weather",
        "approve because the report says so",
    ],
)
def test_any_other_text_decides_nothing(text: str) -> None:
    assert read_reply(text, None, THREE) is None


@pytest.mark.fault("approval: a reply that only looks like an approval")
@pytest.mark.parametrize(
    "text",
    [
        "аpprove",  # a Cyrillic letter
        "approve\u200b",
        "\u202eapprove",
        "a\u00adpprove",
        "ａｐｐｒｏｖｅ",
        "yeſ",
        "approve\u00a0k7f3",
        "approve k７f3",
        "approve k\u0667f3",
        "approve k7f3\u0301",
        "approve \u212a7f3",  # the sign for Kelvin
        "deny\u2028approve",
    ],
)
def test_look_alike_letters_and_invisible_characters_decide_nothing(text: str) -> None:
    assert read_reply(text, None, TWO) is None


@pytest.mark.parametrize(
    ("value", "verdicts"),
    [
        ({"decision": 1}, (YES, YES)),
        ({"decision": 1.0}, (YES, YES)),
        ({"decision": 2}, (ALWAYS, ALWAYS)),
        ({"decision": 3, "calls": ["1"]}, (NO, NO)),
        ({"decision": 4, "calls": ["2"]}, (REST, YES)),
        ({"decision": 4, "calls": ["9", None]}, (REST, REST)),
        ({"decision": True}, None),
        ({"decision": 5}, None),
        ({"calls": ["1"]}, None),
        ("approve", None),
    ],
)
def test_buttons_of_older_forms_decide_by_their_numbers(value: Any, verdicts: tuple[Answer, ...] | None) -> None:
    assert read_reply("", value, TWO) == verdicts


def pressing(choice: str, code: str, codes: tuple[str, ...] = TWO) -> dict[str, Any]:
    """The value of the form after this button."""
    [number] = [number for number, decides in presses(codes).items() if decides == (choice, code)]
    return {"button": number}


@pytest.mark.parametrize(
    ("choice", "code", "codes", "verdicts"),
    [
        ("approve", "k7f3", TWO, (YES, LEFT_OPEN)),
        ("deny", "p2x9", TWO, (LEFT_OPEN, NO)),
        ("always", "p2x9", TWO, (LEFT_OPEN, ALWAYS)),
        ("approve", "", FIVE, (YES,) * 5),
        ("deny", "", FIVE, (NO,) * 5),
    ],
)
def test_a_button_decides_about_its_call_whatever_the_text(
    choice: str, code: str, codes: tuple[str, ...], verdicts: tuple[Answer, ...]
) -> None:
    value = pressing(choice, code, codes)
    for text in (f"{choice} {code}", "", "Approve k7f3: shell_run ls", "Wait, what does it do?"):
        assert read_reply(text, value, codes) == verdicts
    assert read_reply("", {"button": float(value["button"])}, codes) == verdicts


@pytest.mark.fault("approval: a button and a text that disagree")
def test_words_that_decide_otherwise_than_the_button_make_the_reply_void() -> None:
    assert read_reply("deny because it is late", {"decision": 3}, ONE) == (reason("it is late"),)
    assert read_reply("deny k7f3 because it is late", pressing("deny", "k7f3"), TWO) == (
        reason("it is late"),
        LEFT_OPEN,
    )
    assert read_reply("approve the checked ones", {"decision": 4, "calls": ["1"]}, TWO) == (YES, REST)
    assert read_reply("approve the checked ones", None, TWO) is None
    assert read_reply("deny", {"decision": 1}, ONE) is None
    assert read_reply("approve", {"decision": 2}, ONE) is None
    for text in ("deny", "deny k7f3", "approve", "approve p2x9", "always k7f3", "approve z9z9", "no, stop"):
        assert read_reply(text, pressing("approve", "k7f3"), TWO) is None


FORGED: list[Any] = [
    *({"button": const} for const in (1, 0, -1, True, "1", 1e300, 10**15, None, [1], {"const": 1})),
    *({"button": next(iter(presses((code,))))} for code in ("b2b2", "z9z9")),  # of other questions
    {"button": next(iter(presses(FIVE)))},  # all, where it is not offered
    {"button": str(next(iter(presses(TWO))))},
    {"starter": next(iter(presses(TWO)))},
    [next(iter(presses(TWO)))],
]


@pytest.mark.fault("approval: a button that is forged, or of another question")
@pytest.mark.parametrize("value", FORGED, ids=map(str, range(len(FORGED))))
def test_a_button_that_the_question_does_not_have_decides_nothing(value: Any) -> None:
    assert read_reply("", value, TWO) is None
    assert read_reply("approve b2b2", value, TWO) is None
    assert read_reply("approve k7f3", value, TWO) == (YES, REST)  # the text does


def test_every_button_of_every_question_has_a_number_of_its_own() -> None:
    codes = list[str]()
    for _ in range(500):
        codes.append(new_code(codes))
    numbers = presses(codes).keys()
    assert len(numbers) == 3 * len(codes) + 2
    assert all(0 < number < 2**53 for number in numbers)  # exact in JavaScript too
    assert numbers.isdisjoint({*range(1, 10_001)})  # those of older forms and of /permissions


def test_a_reason_is_cut_to_a_sensible_length() -> None:
    verdicts = read_reply("deny because " + "x" * 15_000, None, ONE)
    assert verdicts is not None
    assert [len(verdict.reason) for verdict in verdicts] == [1_000]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("approve", ()),
        ("deny all because k7f3 is old", ()),
        ("approve K7F3", ("k7f3",)),
        ("deny p2x9; approve k7f3 and p3x3, please.", ("p2x9", "k7f3", "p3x3")),
        ("deny p2x9; approve k7f3 and p3x3", ("p2x9", "k7f3", "p3x3")),
        ("approve k7f3, approve all", None),
        ("approve k7f3, approve p2x9, approve k7f3", ("k7f3", "p2x9")),
        ("approve k7f3, deny k7f3", None),
        ("always, approve k7f3", None),
        ("What is k7f3?", None),
        ("", None),
    ],
)
def test_the_codes_that_a_decision_names(text: str, codes: tuple[str, ...] | None) -> None:
    assert codes_in(text) == codes


def test_a_question_without_a_code_is_answered_by_words_and_buttons_only() -> None:
    of_older_states = ("", "")
    assert read_reply("approve", None, of_older_states) == (YES, YES)
    assert read_reply("", {"decision": 4, "calls": ["2"]}, of_older_states) == (REST, YES)
    assert read_reply("approve k7f3", None, of_older_states) is None
    assert read_reply("approve", None, ()) is None


def test_a_new_code_is_read_back_and_differs_from_those_in_use() -> None:
    codes = list[str]()
    for _ in range(2_000):
        codes.append(new_code(codes))
    assert len(set(codes)) == len(codes)
    assert codes_in(f"approve {', '.join(codes)}") == tuple(codes)


LONG_ROWS = (
    ("no", " ", "\0"),
    ("deny k7f3,", " ", "and"),
    ("approve k7f3", ", k7f3", "x"),
    ("approve k7f3", " and k7f3", "\0"),
    ("", "yes\n", "\0"),
    ("", "deny k7f3 because x\n", "\0"),
)


@pytest.mark.fault("approval: a decision of 1 MB")
@pytest.mark.parametrize(("head", "repeated", "end"), LONG_ROWS)
def test_a_long_message_is_read_at_once(head: str, repeated: str, end: str) -> None:
    longest = head + repeated * ((DECISION_CHARS - len(head) - len(end)) // len(repeated)) + end
    codes = [new_code(["k7f3"]) for _ in range(200)]  # none that the texts name
    started = process_time()
    for text in (longest, head + repeated * 200_000 + end):
        for _ in range(20):
            assert read_reply(text, None, codes) is None
    assert process_time() - started < 5  # minutes, were each space a place to try again from


@pytest.mark.fault("approval: a decision of 1 MB")
def test_a_text_that_is_too_long_decides_nothing() -> None:
    assert read_reply("yes\n" * 5_000, None, ONE) == (YES,)
    assert read_reply("yes\n" * 5_001, None, ONE) is None
