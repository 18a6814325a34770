"""Calls that a model wrote into its text are made, whatever their notation; nothing else is taken for one."""

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task.conversation.messages import Message, user
from task.llm.base import (
    Accumulator,
    Delta,
    Finish,
    ModelOptions,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
    Usage,
)
from task.llm.call_texts import OfferedTools
from task.llm.text_calls import LONGEST, TextScanner, with_text_calls
from tests.support.text_answers import PROGRAM, TOOLS, WrittenAnswer, answers

CALL = '{"name": "calculator", "arguments": {"expression": "25*47"}}'
CALCULATED = ("calculator", {"expression": "25*47"})
ASKED = (user("25*47?"),)
Found = tuple[str, tuple[tuple[str, Any], ...]]


def found_in(pieces: Iterable[str], messages: Sequence[Message] = ASKED, tools: Sequence[ToolSchema] = TOOLS) -> Found:
    """The visible text and the calls."""
    scanner = TextScanner(OfferedTools(tools), messages)
    deltas = [delta for piece in pieces for delta in scanner.feed(piece)] + list(scanner.close())
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    return text, tuple((call.name or "", loaded(str(call.arguments))) for call in calls)


def loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:  # cut off
        return arguments


@cache
def corpus() -> list[WrittenAnswer]:
    return list(answers())


@pytest.mark.fault("calls: a call written as text, in any notation, at any cut of the stream")
@pytest.mark.fault("calls: JSON that was asked for, a document's text, or code that looks like a call")
def test_of_the_corpus_no_call_is_missed_and_none_is_invented() -> None:
    wrong = [
        (answer.text, found)
        for answer in corpus()
        if (found := found_in([answer.text], answer.messages)) != (answer.visible, answer.calls)
    ]
    assert not wrong
    assert len(corpus()) >= 200
    assert sum(not answer.calls for answer in corpus()) >= 70


@pytest.mark.fault("calls: a call written as text, in any notation, at any cut of the stream")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_it_makes_no_difference_how_the_text_is_cut(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(corpus()), min_size=1, max_size=3))
    text = "\n".join(answer.text for answer in chosen)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    messages = [message for answer in chosen for message in answer.messages]
    assert found_in(pieces, messages) == found_in([text], messages)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*'`{}[]<>|/"\\:,( )\n', "name", "calculator", "tool_call", "arguments", "x"])), st.data()
)
def test_nor_does_it_for_any_other_text(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cut = data.draw(st.integers(0, len(text)))
    assert found_in([text[:cut], text[cut:]]) == found_in([text])


def test_numbers_written_as_text_fit_where_the_schema_wants_numbers() -> None:
    text = '{"name": "web_search", "arguments": {"query": "7", "num_results": "7"}}'
    assert found_in([text]) == ("", (("web_search", {"query": "7", "num_results": 7}),))


def test_the_purpose_of_a_call_is_no_foreign_argument() -> None:
    arguments = {"expression": "1", "intent": "To know it."}
    assert found_in([json.dumps({"name": "calculator", "arguments": arguments})]) == ("", (("calculator", arguments),))


@pytest.mark.fault("calls: a caller's schema that refers to another host")
@pytest.mark.parametrize("parameters", [{"$ref": "http://127.0.0.1:9/schema"}, {"type": "nonsense"}, {"$ref": "#"}])
def test_a_callers_schema_is_not_resolved_to_recognise_a_call(parameters: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "calculator", "parameters": parameters}}
    assert found_in([CALL], tools=[tool]) == ("", (CALCULATED,))


# What stands in the answer, without any call, and how much of it may be waiting for its decision at any time.
ORDINARY = {
    "prose": ("The result, as computed (25 * 47), is 1175. " * 40, 1),
    "a fence": ("Here:\n```python\nrows = {'a': [1, 2]}\nprint(rows)\n```\nDone.", 40),
    "a thousand-line fence": ("```python\n" + "x = {'a': [1]}\n" * 1000 + "```\n", 40),
    "a thousand-line fence of JSON": ('```json\n{"rows": [\n' + '  {"name": "calculator"},\n' * 1000 + "]}\n```\n", 40),
    "a fence that never ends": ("```\n" + "a {b} [c] <d>\n" * 500, 40),
    "JSON records": ("[\n" + '  {"name": "Alice", "age": 30},\n' * 200 + "]\n", 40),
    "markup": ("<p>a &lt; b and <b>c</b> [1] {x} `y` ~~z~~</p>\n" * 50, 40),
}


@pytest.mark.fault("calls: a thousand-line fence", case="a thousand-line fence")
@pytest.mark.fault("calls: a fence that never ends", case="a fence that never ends")
@pytest.mark.parametrize("name", ORDINARY)
def test_what_is_no_call_is_sent_with_little_delay(name: str) -> None:
    text, most = ORDINARY[name]
    scanner, sent, longest = TextScanner(OfferedTools(TOOLS), ASKED), 0, 0
    for position, letter in enumerate(text, 1):
        sent += sum(len(delta.text) for delta in scanner.feed(letter) if isinstance(delta, TextDelta))
        longest = max(longest, position - sent)
    assert longest <= most
    assert sent + sum(len(delta.text) for delta in scanner.close() if isinstance(delta, TextDelta)) == len(text)


async def received(
    deltas: Iterable[Delta], options: ModelOptions | None = None, tools: Sequence[ToolSchema] = TOOLS
) -> tuple[list[Delta], int]:
    """What becomes of the deltas, and how many were read."""
    read = 0

    async def sent() -> AsyncGenerator[Delta]:
        nonlocal read
        for delta in deltas:
            read += 1
            yield delta

    return [delta async for delta in with_text_calls(sent(), ASKED, tools, options or ModelOptions())], read


def folded(deltas: Iterable[Delta]) -> Accumulator:
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add(delta)
    return accumulator


def called(accumulator: Accumulator) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.function.arguments)) for call in accumulator.message().tool_calls]


def streamed(text: str, size: int = 5) -> list[Delta]:
    return [TextDelta(text[start : start + size]) for start in range(0, len(text), size)]


@pytest.mark.fault("calls: a result that a model invents after its call")
async def test_what_a_model_invents_after_its_call_is_dropped_and_its_usage_kept() -> None:
    text = f"I will look.\n\n```json\n{CALL}\n```\n\nThe result is 100."
    deltas, _ = await received([*streamed(text), Usage(10, 20), Finish("stop")])
    answer = folded(deltas)
    assert (answer.text, called(answer)) == ("I will look.\n\n", [CALCULATED])
    assert (answer.usage, answer.finish_reason) == (Usage(10, 20), "tool_calls")


@pytest.mark.fault("calls: a result that a model invents after its call")
async def test_a_model_that_does_not_stop_inventing_is_stopped() -> None:
    deltas, read = await received([*streamed(CALL + " The result is 100." * 1000), Usage(10, 20), Finish("stop")])
    answer = folded(deltas)
    assert called(answer) == [CALCULATED]
    assert read < 150
    assert answer.finish_reason == "tool_calls"
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens < 300


async def test_calls_of_the_provider_and_calls_in_text_stand_beside_each_other() -> None:
    real = [ToolCallDelta(0, "call_1", "web_search", '{"query": '), ToolCallDelta(0, None, None, '"x"}')]
    deltas, _ = await received([*streamed("First:\n"), *real, *streamed(f"\n{CALL}\nIt is 100."), Finish("stop")])
    answer = folded(deltas)
    assert answer.text == "First:\n"
    assert called(answer) == [("web_search", {"query": "x"}), CALCULATED]
    deltas, _ = await received([*streamed(f"{CALL}\n"), *real, Finish("tool_calls")])
    assert called(folded(deltas)) == [CALCULATED, ("web_search", {"query": "x"})]
    assert [delta.index for delta in deltas if isinstance(delta, ToolCallDelta)] == [0, 1, 1]


@pytest.mark.parametrize(
    "real",
    [
        [ToolCallDelta(0, "call_1", "calculator", {"expression": "25*47"})],
        [ToolCallDelta(0, "call_1", "calculator", '{"expression"'), ToolCallDelta(0, None, None, ':"25*47"}')],
    ],
    ids=["whole", "in pieces"],
)
async def test_a_call_of_the_provider_that_stands_in_the_text_too_is_made_once(real: list[Delta]) -> None:
    other = '{"name": "calculator", "arguments": {"expression": "1"}}'
    deltas, _ = await received([*real, *streamed(f"{CALL}\n{other}\nIt is 100."), Finish("tool_calls")])
    assert called(folded(deltas)) == [CALCULATED, ("calculator", {"expression": "1"})]


async def test_thoughts_are_passed_on_and_never_searched() -> None:
    deltas, _ = await received([ReasoningDelta(CALL), TextDelta("It is 1175."), Finish("stop")])
    assert deltas == [ReasoningDelta(CALL), TextDelta("It is 1175."), Finish("stop")]


@pytest.mark.parametrize(
    ("tools", "options"),
    [
        ((), ModelOptions()),
        (TOOLS, ModelOptions(tool_choice="none")),
        (TOOLS, ModelOptions(extra={"response_format": {"type": "json_object"}})),
    ],
    ids=["no tools", "no calls wanted", "JSON wanted"],
)
async def test_where_no_call_can_be_meant_the_text_is_left_alone(
    tools: Sequence[ToolSchema], options: ModelOptions
) -> None:
    deltas, _ = await received([TextDelta(CALL), Finish("stop")], options, tools)
    assert deltas == [TextDelta(CALL), Finish("stop")]


@pytest.mark.fault("calls: a call in text that was cut off")
@pytest.mark.parametrize("head", ["", "```json\n", "<tool_call>\n"])
async def test_a_call_that_was_cut_off_is_reported_to_the_model_and_not_shown(head: str) -> None:
    deltas, _ = await received([*streamed(f"{head}{CALL[:-8]}"), Finish("length")])
    answer = folded(deltas)
    (call,) = answer.message().tool_calls
    assert (answer.text, call.name) == ("", "calculator")
    assert "cut off by the length limit" in (call.problem or "")


async def test_a_model_that_repeats_its_call_is_stopped() -> None:
    deltas, read = await received([*streamed(f"{CALL}\n" * 1000), Usage(10, 20), Finish("stop")])
    assert called(folded(deltas)) == [CALCULATED]
    assert read < 150


@pytest.mark.parametrize(
    "value", ["{1, 2}", "b'x'", "1j", "...", '"\ud800"', "1" + "0" * 30, "[" * 500 + "]" * 500, "[" * 9000 + "]" * 9000]
)
def test_values_that_json_does_not_have_fail_no_answer(value: str) -> None:
    tool = {"type": "function", "function": {"name": "calculator"}}
    found_in([f'{{"name": "calculator", "arguments": {{"expression": {value}}}}}'], tools=[tool])


@pytest.mark.fault("calls: a thousand-line fence")
async def test_a_fence_with_a_call_of_a_thousand_lines_is_one_call() -> None:
    program = PROGRAM * 500
    text = f"```json\n{json.dumps({'name': 'execute_code', 'arguments': {'code': program}})}\n```"
    deltas, _ = await received([*streamed(text), Finish("stop")])
    assert (folded(deltas).text, called(folded(deltas))) == ("", [("execute_code", {"code": program})])


@pytest.mark.fault("calls: a fence that never ends")
async def test_a_fence_with_a_call_that_never_ends_is_given_up() -> None:
    text = '```json\n{"name": "execute_code", "arguments": {"code": "' + "x = 1\\n" * (LONGEST // 7 * 4)
    deltas, read = await received([*streamed(text, 1000), Finish("stop")])
    answer = folded(deltas)
    (call,) = answer.message().tool_calls
    assert answer.text == ""
    assert "cut off by the length limit" in (call.problem or "")
    assert read < LONGEST // 1000 + 10
