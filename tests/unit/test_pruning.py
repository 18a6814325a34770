"""Repaired and pruned conversations: each call has its one result, whole turns go, and a model accepts the rest."""

import random
from dataclasses import replace
from time import process_time
from typing import Any

import pytest

from task.conversation.messages import (
    INTERRUPTED,
    FunctionCall,
    Message,
    Role,
    ToolCall,
    assistant,
    repaired,
    system,
    tool_message,
    unanswered,
    user,
    with_turn,
)
from task.conversation.pruning import PICTURE_TOKENS, SHORTENED, Budget, cut, fits, message_tokens, pruned, text_tokens
from tests.support.upstream_rules import fault_of


def step(name: str, *, result: str = "result", calls: int = 1) -> list[Message]:
    asked = [ToolCall(f"{name}-{number}", FunctionCall(name)) for number in range(calls)]
    return [assistant(None, asked), *(tool_message(call, result) for call in asked)]


def turn(name: str, *steps: list[Message]) -> list[Message]:
    return [user(f"question {name}"), *(message for each in steps for message in each), assistant(f"answer {name}")]


def texts(messages: list[Message]) -> list[str]:
    return [message.text() for message in messages]


def test_whole_turns_go_oldest_first_and_the_first_goal_stays() -> None:
    messages = [system("S"), *turn("1", step("a")), *turn("2", step("b")), *turn("3", step("c")), user("now")]
    kept = pruned(messages, Budget(messages=8))
    assert texts(kept) == ["S", "question 1", "question 3", "", "result", "answer 3", "now"]


@pytest.mark.fault("history: forty tool steps over a limit of seven messages")
def test_in_one_long_turn_the_newest_steps_stay_with_their_calls() -> None:
    messages = [system("S"), user("goal")]
    for number in range(40):
        messages += step(f"t{number}")
        assert fault_of({"messages": [message.as_dict() for message in pruned(messages, Budget(messages=7))]}) is None
    kept = pruned(messages, Budget(messages=7))
    assert texts(kept)[:2] == ["S", "goal"]
    assert [message.tool_calls[0].name for message in kept if message.tool_calls] == ["t38", "t39"]


def test_system_messages_stay_before_earlier_turns_and_the_newest_of_too_many() -> None:
    messages = [*(system(str(number)) for number in range(25)), *turn("1"), *turn("2"), *turn("3")]
    assert texts(pruned(messages[20:], Budget(messages=8)))[:5] == ["20", "21", "22", "23", "24"]
    kept = pruned(messages, Budget(messages=10))
    assert texts(kept) == ["0", *map(str, range(18, 25)), "question 1", "question 3"]


def test_tokens_limit_as_messages_do() -> None:
    messages = [system("S"), *turn("1", step("a", result="x" * 4000)), *turn("2"), user("now")]
    kept = pruned(messages, Budget(tokens=200))
    assert texts(kept) == ["S", "question 1", "question 2", "answer 2", "now"]
    assert sum(map(message_tokens, kept)) <= 200


def test_results_that_the_model_has_not_seen_are_shortened_not_dropped() -> None:
    messages = [system("S"), user("goal"), *step("a", result="head " + "x" * 100_000 + " tail", calls=4)]
    kept = pruned(messages, Budget(tokens=6000))
    assert len(kept) == len(messages)
    assert all(text.startswith("head ") and SHORTENED in text and text.endswith(" tail") for text in texts(kept)[3:])
    assert sum(map(message_tokens, kept)) <= 6000


def test_a_cut_has_what_was_dropped_and_where_it_was() -> None:
    messages = [system("S"), *turn("1"), *turn("2"), user("now")]
    part = cut(messages, Budget(messages=3))
    assert texts(list(part.dropped)) == ["answer 1", "question 2", "answer 2"]
    assert texts(part.with_note(assistant("note"))) == ["S", "question 1", "note", "now"]


@pytest.mark.fault("history: a history of 2,000 messages")
def test_a_conversation_of_2000_messages_is_fast() -> None:
    messages = [system("S"), *(message for n in range(400) for message in turn(str(n), step("a", result="x" * 2000)))]
    assert len(messages) > 1600
    started = process_time()
    for limit in range(50):
        pruned(messages, Budget(messages=50 + limit, tokens=20_000))
    assert (process_time() - started) / 50 < 0.05


def test_estimates_are_on_the_safe_side_and_a_pictures_data_does_not_count_as_text() -> None:
    assert text_tokens("four bytes make a token in most prose") == 12
    assert text_tokens("Документ") == text_tokens("d" * 16)
    picture = user([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}])
    assert message_tokens(picture) == PICTURE_TOKENS + 4


def _random_conversation(source: random.Random) -> list[Message]:
    messages = [system(f"S{number}") for number in range(source.choice((0, 1, 1, 1, 4)))]
    for number in range(source.randrange(12)):
        if source.random() < 0.1:
            messages.append(system("aside"))
        messages.append(user("question " * source.randrange(1, 200)))
        for place in range(source.randrange(6)):
            size = source.choice((1, 100, 20_000))
            messages += step(f"t{number}_{place}", result="r" * size, calls=source.randrange(1, 4))
        if source.random() < 0.8:
            messages.append(assistant(f"answer {number}"))
    return messages[: source.randrange(1, len(messages) + 1)] if messages else [user("hi")]


@pytest.mark.parametrize("seed", range(40))
def test_pruning_never_breaks_a_conversation(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(25):
        messages = repaired(_random_conversation(source)) or [user("hi")]
        limits: dict[str, Any] = {
            "messages": source.choice((None, 1, 5, 20)),
            "tokens": source.choice((None, 50, 3000)),
        }
        budget = Budget(**limits)
        kept = pruned(messages, budget)
        assert fault_of({"messages": [message.as_dict() for message in kept]}) is None
        order = [replace(message, content=None) for message in messages]
        places = iter(order)
        assert all(replace(message, content=None) in places for message in kept), "order is kept"
        users = [message for message in messages if message.role is Role.USER]
        assert not users or users[-1] in kept
        assert kept == messages or not fits(messages, budget)
        assert pruned(kept, budget) == kept


def call(name: str, call_id: str | None = None) -> ToolCall:
    return ToolCall(call_id or name, FunctionCall(name))


A, B, X, X2 = call("a"), call("b"), call("one", "x"), call("two", "x")
REPAIRS: dict[str, tuple[list[Message], list[Message]]] = {
    "results in another order": (
        [assistant("t", [A, B]), tool_message(B, "2"), tool_message(A, "1")],
        [assistant("t", [A, B]), tool_message(A, "1"), tool_message(B, "2")],
    ),
    "a call without a result": (
        [assistant(None, [A]), user("V")],
        [assistant(None, [A]), tool_message(A, INTERRUPTED, failed=True), user("V")],
    ),
    "a second result for one call": (
        [assistant(None, [A]), tool_message(A, "1"), tool_message(A, "again")],
        [assistant(None, [A]), tool_message(A, "1")],
    ),
    "one id for two calls": (
        [assistant(None, [X, X2]), tool_message(X, "1"), tool_message(X2, "2")],
        [assistant(None, [X, replace(X2, id="x_2")]), tool_message(X, "1"), tool_message(replace(X2, id="x_2"), "2")],
    ),
    "an id that is used again in a later turn": (
        [assistant(None, [A]), tool_message(A, "1")] * 2,
        [assistant(None, [A]), tool_message(A, "1")] * 2,
    ),
    "an empty answer": ([user("U"), assistant(""), user("V")], [user("U"), user("V")]),
}


@pytest.mark.parametrize(("messages", "valid"), REPAIRS.values(), ids=REPAIRS)
def test_what_a_model_would_refuse_is_repaired(messages: list[Message], valid: list[Message]) -> None:
    assert repaired(messages) == repaired(valid) == valid


def test_a_call_that_waits_for_approval_stays_unanswered() -> None:
    messages = [user("U"), assistant(None, [A])]
    assert repaired(messages, ["a"]) == messages


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
    for place, message in enumerate(messages):
        ids = [item.id for item in message.tool_calls]
        answers = messages[place + 1 : place + 1 + len(ids)]
        assert [answer.tool_call_id for answer in answers] == ids
        assert len(set(ids)) == len(ids)
    results = [message for message in messages if message.role is Role.TOOL]
    assert len(results) == sum(len(message.tool_calls) for message in messages)
    assert repaired(messages) == messages


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
