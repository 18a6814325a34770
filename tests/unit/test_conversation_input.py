"""The message format of the design of tool calling over Dapr, its examples word for word."""

from typing import Any

import pytest

from task.conversation.messages import assistant, system, tool_message, user
from task.reference.conversation_input import ConversationInput, tools_of
from tests.support.documented import tool_calling_examples

EXAMPLES = tool_calling_examples()
MESSAGES = {title: example for title, example in EXAMPLES.items() if isinstance(example, dict) and "role" in example}
WEATHER = EXAMPLES["Single Tool Definition"]


@pytest.mark.parametrize("title", MESSAGES)
def test_an_example_is_read_and_written_word_for_word(title: str) -> None:
    assert ConversationInput.from_dict(MESSAGES[title]).as_dict() == MESSAGES[title]


def test_the_examples_are_one_conversation_of_ours() -> None:
    inputs = [ConversationInput.from_dict(MESSAGES[title]) for title in MESSAGES if title.endswith("Message")]
    question, asked, result, answer = [each.message() for each in inputs]
    assert question == user("What's the weather like?")
    [call] = asked.tool_calls
    assert (call.id, call.name, call.function.arguments) == ("call_123", "get_weather", '{"location": "New York"}')
    assert result == tool_message(call, '{"temp": 75, "condition": "sunny"}')
    assert answer == assistant("The weather in New York is sunny with a temperature of 75°F.")
    assert tools_of(inputs) == MESSAGES["Tool Call Request Message"]["tools"]


def test_an_input_of_three_fields_or_one_works_as_before() -> None:
    assert ConversationInput("Hi", "user", True).as_dict() == {"role": "user", "content": "Hi", "scrub_pii": True}
    assert [each.message() for each in [ConversationInput("Be brief.", "system"), ConversationInput("Grüße 🙂")]] == [
        system("Be brief."),
        user("Grüße 🙂"),
    ]
    assert tools_of([ConversationInput("Hi")]) == []


@pytest.mark.fault("tool calling: one tool twice, in messages and in the request")
def test_of_two_tools_with_one_name_the_later_one_counts() -> None:
    other = {"type": "function", "function": {**WEATHER["function"], "description": "Ask the weather service"}}
    assert tools_of([ConversationInput("a", tools=[WEATHER]), ConversationInput("b", tools=[other])]) == [other]


@pytest.mark.fault("tool calling: a message of the design that is incomplete, or of an unknown role")
@pytest.mark.parametrize(
    "incomplete",
    [
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "sunny", "tool_call_id": ""},
        {"role": "narrator", "content": "Once"},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
    ],
)
def test_an_incomplete_message_is_refused_with_its_role(incomplete: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=incomplete["role"]):
        ConversationInput.from_dict(incomplete).message()
