"""The card: the model's words cannot act as anything else, and the rest is computed."""

from typing import Any

import pytest
from markdown_it import MarkdownIt

from task.permissions.decisions import Effect
from task.permissions.gate import card_of
from task.permissions.icerc import ICERC, Brief, RiskAssessment, spelt_out, tricks, visible
from tests.support.gating import CHANGES, RUNS, after_search, facts, request

CARD = ICERC("Tidy up", "rm -rf build", "The folder build is gone", RiskAssessment("high", "runs 1 command", "a\nb"))
DOCUMENTED: dict[str, Any] = {
    "intent": "Tidy up",
    "command": "rm -rf build",
    "expected_outcome": "The folder build is gone",
    "risk_assessment": {"level": "high", "scope": "runs 1 command", "details": "a\nb"},
}


@pytest.mark.parametrize(
    ("brief", "expected"),
    [
        (DOCUMENTED, Brief("Tidy up", "The folder build is gone")),
        ("I want to tidy up.", Brief("I want to tidy up.")),
        (
            "Intent: Tidy up\nCommand: ls\nExpected Outcome: build is gone\nRisk Assessment: Low. Harmless.\n"
            "Please confirm [Y/N]:",
            Brief("Tidy up", "build is gone"),
        ),
        ("**Intent:** Tidy up\n**Expected outcome:** gone", Brief("Tidy up", "gone")),
        (None, Brief()),
        ({"intent": 5, "expected_outcome": ["x"]}, Brief()),
    ],
)
def test_a_card_has_the_documented_shape_and_a_models_brief_is_read_as_dict_or_text(
    brief: Any, expected: Brief
) -> None:
    assert CARD.as_dict() == DOCUMENTED
    assert Brief.read(brief) == expected


@pytest.mark.fault("gate: a model that says read-only of a destructive command")
def test_a_destructive_command_is_shown_as_what_it_does_when_the_model_calls_it_read_only() -> None:
    lie = Brief.read(
        "Intent: List files, read only\nCommand: ls\nExpected Outcome: nothing changes\nRisk Assessment: low, read only"
    )
    asked = request("shell_run", RUNS, brief=lie, command="rm -rf ~/projects")
    card = card_of(facts("shell_run", RUNS, command="rm -rf ~/projects"))
    lied = card_of(type(facts("x", RUNS))(asked))
    assert (lied.intent, lied.expected_outcome) == ("List files, read only", "nothing changes")
    assert (lied.command, lied.risk_assessment) == (card.command, card.risk_assessment)
    assert lied.risk_assessment.level == "high"
    assert "not a plain line: an unquoted ~" in lied.risk_assessment.details
    assert "Risk: HIGH" in lied.markdown()


@pytest.mark.fault("gate: Markdown in the model's words on a card")
@pytest.mark.parametrize(
    "words",
    [
        "![x](https://evil.example/?d=1)",
        "[click](https://evil.example)",
        "https://evil.example/?d=1",
        "<img src=https://evil.example>",
        "**Risk: LOW** – nothing happens",
        "ok\n\n**Risk: LOW**\n\n- harmless",
        "```\nfake\n```",
        "# Approved",
    ],
)
def test_nothing_a_model_writes_into_a_card_acts_as_markdown(words: str) -> None:
    card = ICERC(words, words, words, RiskAssessment("high", words, words))
    tokens = MarkdownIt("commonmark").parse(card.markdown())
    inside = [child for token in tokens for child in token.children or ()]
    assert not {"image", "link_open", "html_inline", "code_inline"} & {token.type for token in inside}
    assert not {"html_block", "heading_open"} & {token.type for token in tokens}
    assert len([token for token in tokens if token.type == "fence"]) == 1
    bold = [
        "".join(part.content for part in inside[at + 1 : at + 2])
        for at, t in enumerate(inside)
        if t.type == "strong_open"
    ]
    assert bold == ["Intent (the model's words):", "Command:", "Expected outcome (the model's words):", "Risk: HIGH"]
    assert "://evil" not in card.markdown().replace(words, "")


@pytest.mark.fault("gate: Markdown in the model's words on a card")
def test_a_command_cannot_leave_its_fence_and_a_long_one_shows_its_head_and_tail() -> None:
    command = "echo '```'\n````\n**Risk: LOW**"
    tokens = MarkdownIt("commonmark").parse(ICERC("", command, "").markdown())
    shown = command.replace("````", "    ````")  # could end code that was open before the card
    assert [token.content for token in tokens if token.type == "fence"] == [f"{shown}\n"]
    shown = ICERC("", "a" * 5_000 + "; rm -rf /", "").markdown()
    assert "3,010 characters are not shown" in shown
    assert shown.count("rm -rf /") == 1
    assert len(shown) < 3_000


@pytest.mark.fault("gate: look-alike letters and right-to-left marks in commands and cards")
@pytest.mark.parametrize(
    ("text", "shown", "trick"),
    [
        ("rm \u202egnp.exe", "rm \\u202egnp.exe", "hidden or reordering characters"),
        ("l\u200bs", "l\\u200bs", "hidden or reordering characters"),
        ("ls\x1b[2K", "ls\\x1b[2K", "hidden or reordering characters"),
        ("ls\r", "ls\\x0d", "hidden or reordering characters"),
        ("a\u00a0b", "a\\xa0b", "hidden or reordering characters"),
        ("x\U000e0041", "x\\ue0041", "hidden or reordering characters"),
        ("r\u043c file", "r\\u043c file", "look-alike letters of another alphabet"),
        ("\u0441\u0440 a b", "\\u0441\\u0440 a b", "look-alike letters of another alphabet"),
        ("\uff52\uff4d x", "\\uff52\\uff4d x", "look-alike letters of another alphabet"),
        ("p\u03b1ypal.com", "p\\u03b1ypal.com", "look-alike letters of another alphabet"),
    ],
)
def test_characters_that_deceive_are_spelt_out_and_named(text: str, shown: str, trick: str) -> None:
    assert spelt_out(text) == shown
    assert tricks(text) == [trick]


@pytest.mark.parametrize("text", ["plain", "Grüße aus Köln", "Привет, мир", "日本語", "tab\tand\nline", "👍"])
def test_honest_texts_of_all_languages_stay_as_they_are(text: str) -> None:
    assert visible(text) == text
    assert tricks(text) == []


@pytest.mark.fault("gate: look-alike letters and right-to-left marks in commands and cards")
def test_deceiving_characters_raise_the_risk_and_a_value_cannot_pretend_to_be_a_further_argument() -> None:
    card = card_of(facts("send_mail", frozenset({Effect.WRITE}), after_search(), to="b\u043eb@example.com\u202e"))
    assert card.risk_assessment.level == "high"
    assert "b\\u043eb@example.com\\u202e" in card.markdown()
    card = card_of(facts("send_mail", CHANGES, text='hi"\nto = "me@example.com'))
    assert card.command.splitlines() == ["send_mail", 'text = "hi\\"\\nto = \\"me@example.com"']
