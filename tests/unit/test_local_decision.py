"""The next step of a small model: what its JSON may look like, and what it means."""

import json
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, system, tool_message, user
from task.local.model.decision import Call, addresses_in, calls_in, decision_schema, unread
from task.local.model.prompt import CARDS, PREFIX_TOKENS, fitted, predicted_prefix, prefix, rendered, tokens
from task.prompts import SYSTEM_PROMPT
from tests.support.local_tools import DEFAULT_TOOLS, EXTRACT, STRING, tool

FILE = "files/bucket/my%20report.csv"
NOWHERE = addresses_in([])
SUM = {"tool": "calculator", "arguments": {"expression": "1+1"}}


def allows(schema: dict[str, Any] | None, *steps: dict[str, Any]) -> bool:
    assert schema is not None
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema).is_valid(list(steps))


def decided(text: str, *messages: Message) -> list[Call]:
    return calls_in(text, DEFAULT_TOOLS, messages)


def test_a_step_is_a_reply_or_calls_of_the_tools() -> None:
    schema = decision_schema(DEFAULT_TOOLS, NOWHERE, None)
    assert allows(schema, {"tool": "reply"})
    assert allows(schema, SUM)
    assert allows(schema, SUM, {"tool": "calculator", "arguments": {"expression": "2*3"}})
    assert not allows(schema, SUM, {"tool": "execute_code", "arguments": {"code": "1"}})
    assert not allows(schema)
    assert not allows(schema, {"tool": "reply"}, SUM)
    assert not allows(schema, {"tool": "rm", "arguments": {}})
    assert not allows(schema, {"tool": "calculator", "arguments": {}})


def test_only_files_and_pages_of_the_conversation_can_be_named() -> None:
    said = f"Compare.\n\nAttached files:\n- a (text/csv): {FILE}\n\nAnd https://example.org/x?a=1."
    addresses = addresses_in([user(said)])
    assert (addresses["file_url"], addresses["url"]) == ([FILE], ["https://example.org/x?a=1"])
    schema = decision_schema(DEFAULT_TOOLS, addresses, None)
    assert allows(schema, {"tool": EXTRACT, "arguments": {"file_url": FILE, "page": 2}})
    assert not allows(schema, {"tool": EXTRACT, "arguments": {"file_url": "files/bucket/other.csv"}})
    assert allows(schema, {"tool": "fetch_page", "arguments": {"url": "https://example.org/x?a=1"}})
    assert not allows(schema, {"tool": "fetch_page", "arguments": {"url": "https://example.org/"}})


def test_arithmetic_is_numbers_signs_and_functions() -> None:
    schema = decision_schema(DEFAULT_TOOLS, NOWHERE, None)
    for expression in ("sum([1500, 900])*0.15", "sqrt(2) + sin(1.5e3) % 7", "2**20"):
        assert allows(schema, {"tool": "calculator", "arguments": {"expression": expression}})
    for expression in ("sum(report['Sales'])", "x + 1", ""):
        assert not allows(schema, {"tool": "calculator", "arguments": {"expression": expression}})


def test_a_tool_that_needs_a_file_is_not_offered_without_one() -> None:
    schema = decision_schema(DEFAULT_TOOLS, NOWHERE, None)
    assert EXTRACT not in json.dumps(schema)
    assert "fetch_page" not in json.dumps(schema)
    assert decision_schema([tool("read", "Reads.", ["file_url"], file_url=STRING)], NOWHERE, None) is None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "calculator"}}])
def test_a_required_call_rules_out_a_reply(choice: Any) -> None:
    schema = decision_schema(DEFAULT_TOOLS, NOWHERE, choice)
    assert allows(schema, SUM)
    assert not allows(schema, {"tool": "reply"})


def test_schemas_of_other_servers_are_reduced_to_what_a_grammar_can_express() -> None:
    place = {"type": "object", "properties": {"city": {"type": "string", "pattern": "^(?!x)"}}, "required": ["city"]}
    inner = {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]}
    foreign = tool("weather", "Weather.", ["where"], where=inner, days={"type": "array", "items": {"type": "integer"}})
    foreign["function"]["parameters"]["$defs"] = {"place": place}
    schema = decision_schema([foreign], NOWHERE, None)
    assert allows(schema, {"tool": "weather", "arguments": {"where": {"city": "Oslo"}, "days": [1]}})
    assert not allows(schema, {"tool": "weather", "arguments": {"where": {"town": "Oslo"}}})
    assert "pattern" not in json.dumps(schema)


def test_a_call_with_a_result_in_this_turn_is_not_repeated() -> None:
    call = ToolCall("c1", FunctionCall("calculator", '{"expression": "1+1"}'))
    turn = [user("1+1?"), assistant(calls=[call]), tool_message(call, "2")]
    assert decided(json.dumps([SUM]), *turn) == []
    assert decided(json.dumps([SUM]), *turn, assistant("2"), user("Again, please")) != []


@pytest.mark.parametrize(
    "text", ['[{"tool":"reply"}]', '[{"tool":"calculator","argum', "[]", "[1]", '{"tool":"x"}', ""]
)
def test_anything_but_a_call_means_that_the_model_replies(text: str) -> None:
    assert decided(text) == []


def test_a_short_file_that_was_read_is_not_looked_up_again() -> None:
    reading = ToolCall("c1", FunctionCall(EXTRACT, json.dumps({"file_url": FILE})))
    asked = [user(f"Profit? {FILE} files/b/other.pdf"), assistant(calls=[reading])]
    addresses = addresses_in(asked)
    assert addresses["file_url"] == [FILE, "files/b/other.pdf"]
    assert unread(addresses, asked) == addresses
    assert unread(addresses, [*asked, tool_message(reading, "Short.")])["file_url"] == ["files/b/other.pdf"]
    assert unread(addresses, [*asked, tool_message(reading, "First.\n\n**Page #1. Total pages: 3**")]) == addresses
    assert unread(addresses, [*asked, tool_message(reading, "long " * 1000)]) == addresses


CALL = ToolCall("c1", FunctionCall("calculator", '{"expression":"1+1"}'))


def test_the_beginning_is_short_and_does_not_depend_on_the_tools_order() -> None:
    shuffled = Random(1).sample(DEFAULT_TOOLS, len(DEFAULT_TOOLS))
    assert prefix(shuffled) == prefix(DEFAULT_TOOLS)
    assert tokens(system(prefix(DEFAULT_TOOLS))) <= PREFIX_TOKENS


def test_the_predicted_beginning_is_the_one_of_the_default_tools() -> None:
    assert predicted_prefix().text() == prefix(DEFAULT_TOOLS)
    assert all(name in prefix(DEFAULT_TOOLS) for name in CARDS)
    assert "read_file_lines" not in prefix(DEFAULT_TOOLS)


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


def test_a_question_longer_than_the_window_is_shortened_in_the_middle() -> None:
    [kept] = fitted([user("BEGIN " + "word " * 30_000 + "END?")], 4000)
    assert kept.text().startswith("BEGIN")
    assert kept.text().endswith("END?")
    assert tokens(kept) <= 4000
