"""What a small model reads: short, in a stable order, within its window."""

from __future__ import annotations

from random import Random

from task.conversation.messages import FunctionCall, ToolCall, assistant, system, tool_message, user
from task.local.model.prompt import CARDS, PREFIX_TOKENS, deciding, fitted, predicted_prefix, prefix, rendered, tokens
from task.prompts import SYSTEM_PROMPT
from tests.support.local_tools import DEFAULT_TOOLS, tool

CALL = ToolCall("c1", FunctionCall("calculator", '{"expression":"1+1"}'))


def test_the_beginning_is_short_and_does_not_depend_on_the_tools_order() -> None:
    shuffled = Random(1).sample(DEFAULT_TOOLS, len(DEFAULT_TOOLS))
    assert prefix(shuffled) == prefix(DEFAULT_TOOLS)
    assert tokens(system(prefix(DEFAULT_TOOLS))) <= PREFIX_TOKENS


def test_the_predicted_beginning_is_the_one_of_the_default_tools() -> None:
    assert predicted_prefix().text() == prefix(DEFAULT_TOOLS)
    assert all(name in prefix(DEFAULT_TOOLS) for name in CARDS)
    assert "read_file_lines" not in prefix(DEFAULT_TOOLS)


def test_another_tool_is_described_by_its_first_sentence_after_the_known_ones() -> None:
    more = tool("book_table", "Books a table in a restaurant. Then much more is said.", ["when", "people"])
    assert "- book_table(when, people): Books a table in a restaurant\n" in prefix([more, *DEFAULT_TOOLS])
    assert prefix([more, *DEFAULT_TOOLS]).index("fetch_page") < prefix([more, *DEFAULT_TOOLS]).index("book_table")


def test_the_products_own_prompt_is_removed_and_another_one_stays() -> None:
    plain = rendered([system(f"{SYSTEM_PROMPT}\n\nSpeak like a pirate."), user("Hi")], DEFAULT_TOOLS, None)
    assert plain[0].text() == prefix(DEFAULT_TOOLS) + "\n\nSpeak like a pirate."
    assert rendered([system(SYSTEM_PROMPT), user("Hi")], (), None) == [user("Hi")]


def test_calls_and_results_become_plain_alternating_messages() -> None:
    other = ToolCall("c2", FunctionCall("execute_code", '{"code":"print(4)"}'))
    turn = [user("?"), assistant(calls=[CALL, other]), tool_message(CALL, "2"), tool_message(other, "4")]
    plain = rendered(turn, (), "Next.")
    assert [message.role for message in plain] == ["user", "assistant", "user", "system"]
    assert plain[1].text() == (
        '[{"tool":"calculator","arguments":{"expression":"1+1"}},{"tool":"execute_code","arguments":{"code":"print(4)"}}]'
    )
    assert plain[2].text() == "Result of calculator:\n2\n\nResult of execute_code:\n4"


def test_unread_files_are_pointed_out_until_something_was_read() -> None:
    asked = [user("Total?")]
    assert "not read the attached files" in deciding(asked, ["files/b/x.csv"])
    assert "not read" not in deciding(asked, [])
    assert "not read" not in deciding([*asked, assistant(calls=[CALL]), tool_message(CALL, "2")], ["files/b/x.csv"])


def test_a_long_result_keeps_head_and_tail_and_reports_what_is_missing() -> None:
    result = "first row\n" + "x 1234 | " * 4000 + "\n**Page #1. Total pages: 3**"
    [_, _, short] = fitted([user("?"), assistant(calls=[CALL]), tool_message(CALL, result)], 7000)
    assert short.text().startswith("first row")
    assert short.text().endswith("**Page #1. Total pages: 3**")
    assert "characters left out" in short.text()
    assert 1500 < tokens(short) < 7000 / 3


def test_a_conversation_larger_than_the_window_keeps_the_last_question_and_fits() -> None:
    turns = [message for n in range(200) for message in (user(f"Question {n}? " * 20), assistant("Answer. " * 50))]
    kept = fitted([*turns, user("And now?")], 4000)
    assert kept[-1] == user("And now?")
    assert sum(map(tokens, kept)) <= 4000 - PREFIX_TOKENS


def test_a_question_longer_than_the_window_is_shortened_in_the_middle() -> None:
    [kept] = fitted([user("BEGIN " + "word " * 30_000 + "END?")], 4000)
    assert kept.text().startswith("BEGIN")
    assert kept.text().endswith("END?")
    assert tokens(kept) <= 4000
