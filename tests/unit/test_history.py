"""A repaired conversation: every call has exactly one result, directly after it, and there are no other results."""

from __future__ import annotations

import random

import pytest

from task.conversation.history import INTERRUPTED, repaired, unanswered, with_turn
from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, system, tool_message, user


def call(name: str, call_id: str | None = None) -> ToolCall:
    return ToolCall(call_id or name, FunctionCall(name))


def test_a_valid_conversation_stays_as_it_is() -> None:
    a, b = call("a"), call("b")
    messages = [system("S"), user("U"), assistant("t", [a, b]), tool_message(a, "1"), tool_message(b, "2")]
    assert repaired(messages) == messages


def test_results_are_put_into_call_order() -> None:
    a, b = call("a"), call("b")
    messages = repaired([assistant(None, [a, b]), tool_message(b, "2"), tool_message(a, "1")])
    assert [message.content for message in messages[1:]] == ["1", "2"]


def test_an_unanswered_call_gets_the_result_interrupted() -> None:
    assert [message.content for message in repaired([user("U"), assistant(None, [call("a")]), user("V")])] == [
        "U",
        None,
        INTERRUPTED,
        "V",
    ]


def test_a_call_that_waits_for_approval_stays_unanswered() -> None:
    messages = [user("U"), assistant(None, [call("a")])]
    assert repaired(messages, ["a"]) == messages


def test_a_second_result_for_one_call_is_left_out() -> None:
    a = call("a")
    assert repaired([assistant(None, [a]), tool_message(a, "1"), tool_message(a, "again")]) == [
        assistant(None, [a]),
        tool_message(a, "1"),
    ]


def test_calls_that_share_an_id_get_ids_of_their_own_with_their_results() -> None:
    one, two = call("one", "x"), call("two", "x")
    messages = repaired([assistant(None, [one, two]), tool_message(one, "1"), tool_message(two, "2")])
    assert [item.id for item in messages[0].tool_calls] == ["x", "x_2"]
    assert [(message.tool_call_id, message.content) for message in messages[1:]] == [("x", "1"), ("x_2", "2")]


def test_an_id_may_be_used_again_in_a_later_turn() -> None:
    a = call("a", "call_0")
    turn = [assistant(None, [a]), tool_message(a, "1")]
    assert repaired([*turn, *turn]) == [*turn, *turn]


def test_an_empty_assistant_message_is_left_out() -> None:
    assert repaired([user("U"), assistant(""), user("V")]) == [user("U"), user("V")]


@pytest.mark.parametrize("seed", range(200))
def test_any_sequence_becomes_valid_and_repairing_twice_changes_nothing(seed: int) -> None:
    dice = random.Random(seed)
    calls = [call(f"f{number}", f"id{dice.randrange(4)}") for number in range(6)]
    kinds = [
        lambda: user("U"),
        lambda: assistant(dice.choice(["", "text"])),
        lambda: assistant(None, dice.sample(calls, dice.randrange(1, 4))),
        lambda: tool_message(dice.choice(calls), "result"),
    ]
    messages = repaired([dice.choice(kinds)() for _ in range(dice.randrange(30))])
    assert valid(messages)
    assert repaired(messages) == messages


def valid(messages: list[Message]) -> bool:
    position = 0
    while position < len(messages):
        message = messages[position]
        if message.role is Role.TOOL:
            return False
        ids = [item.id for item in message.tool_calls]
        answers = messages[position + 1 : position + 1 + len(ids)]
        if [answer.tool_call_id for answer in answers] != ids or len(set(ids)) != len(ids):
            return False
        position += 1 + len(ids)
    return True


def test_open_calls_are_those_at_the_end_without_a_result() -> None:
    a, b = call("a"), call("b")
    assert unanswered([user("U"), assistant(None, [a, b]), tool_message(a, "1")]) == (b,)
    assert unanswered([assistant(None, [a]), user("V")]) == ()


def test_a_past_turn_is_its_tool_history_and_the_text_that_is_not_in_it() -> None:
    a = call("a")
    history = [assistant("Let me see.", [a]), tool_message(a, "1")]
    assert with_turn(history, "Let me see.\n\nIt is 1.") == [*history, assistant("It is 1.")]
    assert with_turn(history, "The user edited this.") == [*history, assistant("The user edited this.")]
    assert with_turn((), "Plain.") == [assistant("Plain.")]
