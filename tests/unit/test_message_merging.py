"""A client's messages compared with the stored ones."""

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


YES, EDITED, UNKNOWN = user("yes"), user("26*47?"), assistant("I do not know.")
ONCE, TWICE = [YES, assistant("Once?")], [*COUNTED, MORE, assistant("2350")]
CALLED, RAIN = [user("weather?"), assistant(None, [CALL])], tool_message(CALL, "rain")
BRIEF = system("Be brief.")
HISTORIES: dict[str, tuple[list[Message], list[Message], Merged]] = {
    "one new message alone continues": (COUNTED, [MORE], Merged(4, (MORE,))),
    "a short message sent twice is two": (ONCE, [YES], Merged(2, (YES,))),
    "the same in a whole history": (ONCE, [*ONCE, YES], Merged(2, (YES,))),
    "a retried question is stored once": ([MORE], [MORE], Merged(1, ())),
    "a cut history continues from there": (TWICE, [*COUNTED, MORE], Merged(5, (), True)),
    "another answer is a branch": (COUNTED, [COUNTED[0], UNKNOWN, MORE], Merged(1, (UNKNOWN, MORE), True)),
    "results follow their calls": (CALLED, [RAIN], Merged(2, (RAIN,))),
    "results in a whole history": (CALLED, [*CALLED, RAIN], Merged(2, (RAIN,))),
    "a system prompt is not stored": (COUNTED, [BRIEF, *COUNTED, MORE], Merged(4, (MORE,))),
    "nothing before a word": ([MORE], [], Merged(1, ())),
    "nor is the first one": ([], [BRIEF, MORE], Merged(0, (MORE,))),
}


@pytest.mark.parametrize(("stored", "sent", "found"), HISTORIES.values(), ids=HISTORIES)
def test_what_is_known_stays_and_the_rest_is_new(stored: list[Message], sent: list[Message], found: Merged) -> None:
    assert merged(stored, sent) == found


@pytest.mark.fault("store: a history that differs from the stored one")
def test_where_the_histories_part_the_client_is_right() -> None:
    assert merged(COUNTED, [EDITED, assistant("1222"), MORE]) == Merged(0, (EDITED, assistant("1222"), MORE), True)
    assert merged(TWICE, [*COUNTED, EDITED]) == Merged(4, (EDITED,), True)


def test_pictures_are_part_of_what_is_compared() -> None:
    def look(url: str) -> Message:
        return user([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}])

    stored = [look("a.png"), assistant("A cat.")]
    assert merged(stored, [*stored, MORE]) == Merged(2, (MORE,))
    assert merged(stored, [look("b.png"), assistant("A cat."), MORE]).branched


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
