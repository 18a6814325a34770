"""A client's messages compared with the stored ones."""

from __future__ import annotations

import pytest

from task.conversation.merging import Merged, merged
from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, system, tool_message, user

CALL = ToolCall("call_1", FunctionCall("calculator", '{"expression": "25*47"}'))
COUNTED = [user("25*47?"), assistant("Let me count.", [CALL]), tool_message(CALL, "1175"), assistant("It is 1175.")]
MORE = user("and twice that?")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(COUNTED[1:], id="as-it-was"),
        pytest.param([assistant("It is 1175.")], id="the-last-answer"),
        pytest.param([assistant("Let me count.\n\nIt is 1175.")], id="all-text-as-one"),
        pytest.param([assistant("Let me count."), assistant("It is 1175.")], id="texts-without-calls"),
    ],
)
def test_a_full_history_repeats_no_turn_in_whatever_form_the_client_sends_the_answer(answer: list[Message]) -> None:
    assert merged(COUNTED, [COUNTED[0], *answer, MORE]) == Merged(4, (MORE,))


def test_one_new_message_alone_continues_the_conversation() -> None:
    assert merged(COUNTED, [MORE]) == Merged(4, (MORE,))


def test_the_same_short_message_sent_twice_is_two_messages() -> None:
    yes = user("yes")
    stored = [yes, assistant("Once?")]
    assert merged(stored, [yes]) == Merged(2, (yes,))
    assert merged(stored, [*stored, yes]) == Merged(2, (yes,))


def test_a_retried_question_whose_answer_failed_is_stored_once() -> None:
    assert merged([user("hello")], [user("hello")]) == Merged(1, ())


@pytest.mark.fault("store: a history that differs from the stored one")
def test_where_the_histories_part_the_client_is_right() -> None:
    edited = user("26*47?")
    assert merged(COUNTED, [edited, assistant("1222"), MORE]) == Merged(0, (edited, assistant("1222"), MORE), True)
    assert merged([*COUNTED, MORE, assistant("2350")], [*COUNTED, edited]) == Merged(4, (edited,), True)


def test_another_answer_than_the_stored_one_is_a_branch() -> None:
    other = assistant("I do not know.")
    assert merged(COUNTED, [COUNTED[0], other, MORE]) == Merged(1, (other, MORE), True)


def test_a_history_cut_off_at_a_message_of_the_user_continues_from_there() -> None:
    stored = [*COUNTED, MORE, assistant("2350")]
    assert merged(stored, [*COUNTED, MORE]) == Merged(5, (), True)


def test_results_of_the_clients_own_tools_follow_the_calls_that_wait_for_them() -> None:
    stored, result = [user("weather?"), assistant(None, [CALL])], tool_message(CALL, "rain")
    assert merged(stored, [result]) == Merged(2, (result,))
    assert merged(stored, [*stored, result]) == Merged(2, (result,))


def test_system_prompts_come_and_go_with_the_request() -> None:
    assert merged(COUNTED, [system("Be brief."), *COUNTED, MORE]) == Merged(4, (MORE,))
    assert merged([], [system("Be brief."), MORE]) == Merged(0, (MORE,))


def test_pictures_are_part_of_what_is_compared() -> None:
    def look(url: str) -> Message:
        return user([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}])

    stored = [look("a.png"), assistant("A cat.")]
    assert merged(stored, [*stored, MORE]) == Merged(2, (MORE,))
    assert merged(stored, [look("b.png"), assistant("A cat."), MORE]).branched


def test_five_hundred_messages_are_compared_quickly() -> None:
    stored = [message for number in range(250) for message in (user(f"{number}?"), assistant(f"{number}!"))]
    assert merged(stored, [*stored, MORE]) == Merged(500, (MORE,))


OURS, THEIRS = CALL, ToolCall("call_2", FunctionCall("lookup", '{"name": "Ann"}'))
MIXED = [user("How old?"), assistant("Let me see.", [OURS, THEIRS]), tool_message(OURS, "1175")]
FOUND, OLD = tool_message(THEIRS, "42"), assistant("Ann is 42.")


def seen(arguments: str = '{"name": "Ann"}') -> Message:
    """The turn of the calls as a client knows it: with its own call alone."""
    return assistant("Let me see.", [ToolCall("call_2", FunctionCall("lookup", arguments))])


@pytest.mark.parametrize("arguments", ['{"name": "Ann"}', '{ "name":"Ann" }'])
def test_a_client_that_has_only_its_own_calls_continues_with_the_results_of_ours(arguments: str) -> None:
    assert merged(MIXED, [MIXED[0], seen(arguments), FOUND]) == Merged(3, (FOUND,))
    whole = [*MIXED, FOUND, OLD]
    assert merged(whole, [MIXED[0], seen(arguments), FOUND, OLD, MORE]) == Merged(5, (MORE,))


def test_a_turn_of_our_calls_alone_between_the_clients_is_kept() -> None:
    later = ToolCall("call_3", FunctionCall("calculator", "{}"))
    whole = [*MIXED, FOUND, assistant(None, [later]), tool_message(later, "2"), OLD]
    assert merged(whole, [MIXED[0], seen(), FOUND, OLD, MORE]) == Merged(7, (MORE,))


def test_text_before_our_own_calls_is_one_text_with_the_clients() -> None:
    before = ToolCall("call_0", FunctionCall("calculator", "{}"))
    stored = [MIXED[0], assistant("First I count.", [before]), tool_message(before, "2"), *MIXED[1:]]
    answer = assistant("First I count.\n\nLet me see.", [THEIRS])
    assert merged(stored, [MIXED[0], answer, FOUND]) == Merged(5, (FOUND,))


def test_a_client_that_sends_other_calls_or_results_is_right() -> None:
    other = seen('{"name": "Bob"}')
    assert merged(MIXED, [MIXED[0], other, FOUND]) == Merged(1, (other, FOUND), True)
    elsewhere = tool_message(THEIRS, "43")
    whole = [*MIXED, FOUND, OLD]
    assert merged(whole, [MIXED[0], seen(), elsewhere]) == Merged(1, (seen(), elsewhere), True)
