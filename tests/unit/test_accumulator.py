"""From the bytes of a stream to one assistant message, wherever they are split, whatever providers do to tool calls."""

import collections
import json
import re
from itertools import count
from random import Random
from typing import Any

import pytest

from task.conversation.messages import Attachment, Message, Role
from task.llm.base import Accumulator, Delta, FileDelta, Finish, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from task.llm.chat_chunks import DONE, EventTooLong, SseReader, tool_call_delta
from tests.support.streams import Stream, random_stream

Call = ToolCallDelta


def folded(*deltas: Delta) -> Message:
    numbers = count(1)
    accumulator = Accumulator(new_id=lambda: f"new_{next(numbers)}")
    for delta in deltas:
        accumulator.add(delta)
    return accumulator.message()


def calls(*deltas: Delta) -> list[tuple[str, str, dict[str, Any]]]:
    return [(call.id, call.name, json.loads(call.function.arguments)) for call in folded(*deltas).tool_calls]


def test_an_answer_is_one_message_with_its_usage_and_finish() -> None:
    attachment = Attachment(type="image/png", url="files/b/x.png")
    accumulator = Accumulator()
    for delta in (
        *(ReasoningDelta("first "), ReasoningDelta("this"), FileDelta(attachment)),
        *(TextDelta("Hel"), TextDelta("lo"), Usage(10, 2), Finish("stop")),
    ):
        accumulator.add(delta)
    assert accumulator.message() == Message(
        Role.ASSISTANT, "Hello", reasoning_content="first this", attachments=(attachment,)
    )
    assert (accumulator.text, accumulator.usage, accumulator.finish_reason) == ("Hello", Usage(10, 2), "stop")
    assert folded(Finish("stop")) == Message(Role.ASSISTANT, "")
    assert folded(Call(0, "a", "f", "{}")).content is None
    assert folded(TextDelta("Let me look."), Call(0, "a", "f", "{}")).content == "Let me look."


CALLS: dict[str, tuple[list[Call], list[tuple[str, str, dict[str, Any]]]]] = {
    "fragments in the standard form": (
        [Call(0, "a", "f", ""), Call(0, None, None, '{"x"'), Call(0, None, None, ": 1}")],
        [("a", "f", {"x": 1})],
    ),
    "interleaved, in the order of their first pieces": (
        [Call(5, "a", "f", '{"x"'), Call(2, "b", "g", "{"), Call(5, None, None, ": 1}"), Call(2, None, None, "}")],
        [("a", "f", {"x": 1}), ("b", "g", {})],
    ),
    "an unknown id at a used index": (
        [Call(0, "a", "f", '{"x": 1}'), Call(0, "b", "f", '{"x": 2}')],
        [("a", "f", {"x": 1}), ("b", "f", {"x": 2})],
    ),
    "an id that comes later": ([Call(0, None, "f", '{"x"'), Call(0, "a", None, ": 1}")], [("a", "f", {"x": 1})]),
    "a late id after complete arguments": (
        [Call(0, None, "f", '{"x": 1}'), Call(0, "a", "f", '{"x": 2}')],
        [("new_1", "f", {"x": 1}), ("a", "f", {"x": 2})],
    ),
    "complete, without id and index": (
        [Call(name="f", arguments={"x": 1}), Call(name="f", arguments={"x": 2}), Call(name="g")],
        [("new_1", "f", {"x": 1}), ("new_2", "f", {"x": 2}), ("new_3", "g", {})],
    ),
    "an empty last piece": (
        [Call(0, "", "f", '{"x": 1}'), Call(0, "", None, ""), Call(0, "", "f", '{"x": 2}')],
        [("new_1", "f", {"x": 1}), ("new_2", "f", {"x": 2})],
    ),
    "repeated names and ids": (
        [Call(0, "a", "f", '{"x"'), Call(0, "a", "f", ": "), Call(0, "a", "f", "1}"), Call(0, "a", "f", "")],
        [("a", "f", {"x": 1})],
    ),
    **{
        f"two complete ones with one id, index {index}": (
            [Call(0, "same", "f", '{"x": 1}'), Call(index, "same", "f", '{"x": 2}')],
            [("same", "f", {"x": 1}), ("new_1", "f", {"x": 2})],
        )
        for index in (0, 1, None)
    },
    "two in pieces with one id": (
        [Call(0, "same", "f", ""), Call(0, arguments='{"x": 1}'), Call(1, "same", "f", ""), Call(1, arguments="{}")],
        [("same", "f", {"x": 1}), ("new_1", "f", {})],
    ),
    "the same complete one twice": (
        [Call(0, "a", "f", '{"x": 1}'), Call(0, "a", "f", '{"x": 1}')],
        [("a", "f", {"x": 1})],
    ),
}


@pytest.mark.parametrize(("deltas", "made"), CALLS.values(), ids=CALLS)
def test_pieces_become_calls(deltas: list[Call], made: list[tuple[str, str, dict[str, Any]]]) -> None:
    assert calls(*deltas) == made


@pytest.mark.parametrize("raw", [None, "", "  \n", "null", "{}", {}])
def test_no_arguments_are_an_empty_object(raw: str | dict[str, Any] | None) -> None:
    (call,) = folded(Call(0, "a", "f", raw)).tool_calls
    assert (call.function.arguments, call.problem) == ("{}", None)


@pytest.mark.fault("calls: cut tool JSON")
@pytest.mark.parametrize(
    ("raw", "finish", "problem"),
    [
        ('{"a": 1,, "b": 2}', "tool_calls", "not valid JSON: .*at line 1 column 9 \\(character 8 of 17\\)"),
        ('{"a": "b', "tool_calls", "not valid JSON"),
        ('{"a": "b', "length", "cut off by the length limit after 8 characters"),
        ("a,b", "tool_calls", "not valid JSON"),
        ('{"a": NaN}', "tool_calls", "not valid JSON"),
        ("[1, 2]", "tool_calls", "must be a JSON object, not an array"),
        ('"text"', "tool_calls", "must be a JSON object, not a string"),
        ("3", "tool_calls", "must be a JSON object, not a number"),
        ("true", "tool_calls", "must be a JSON object, not a boolean"),
    ],
)
def test_arguments_that_are_not_an_object_become_a_problem(raw: str, finish: str, problem: str) -> None:
    (call,) = folded(Call(0, "a", "f", raw), Finish(finish)).tool_calls
    assert call.function.arguments == "{}"
    assert call.problem is not None
    assert re.search(problem, call.problem)


def test_a_name_that_no_provider_would_accept_is_made_valid() -> None:
    names = [call.name for call in folded(Call(0, "a", "functions.f g", "{}"), Call(1, "b", None, "{}")).tool_calls]
    assert names == ["functions_f_g", "unnamed"]


def wrong(stream: Stream) -> str | None:
    accumulator = Accumulator()
    for fragment in (fragment for chunk in stream.chunks for fragment in chunk):
        accumulator.add(tool_call_delta(fragment))
    accumulator.add(Finish("tool_calls"))
    calls = accumulator.message().tool_calls
    rebuilt = [(call.name, json.loads(call.function.arguments)) for call in calls]
    ids = [call.id for call in calls]
    sent = [call.id or ids[number] for number, call in enumerate(stream.calls)] if len(ids) == len(stream.calls) else []
    if rebuilt != [(call.name, call.arguments) for call in stream.calls]:
        return f"{stream.style}: {stream.chunks} became {rebuilt}"
    return None if ids == sent and all(ids) and len(set(ids)) == len(ids) else f"{stream.style}: ids {ids}, not {sent}"


def first_wrong(count: int, seed: int) -> str | None:
    random = Random(seed)
    return next((fault for _ in range(count) if (fault := wrong(random_stream(random)))), None)


def test_2000_streams_are_rebuilt_without_an_error() -> None:
    assert first_wrong(2_000, seed=1) is None


FIRST = json.dumps({"text": "Grüße 🙂 漢字"}, ensure_ascii=False).encode()
SECOND = b'{"n": 2}'

LOOKS = {
    "plain": b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n",
    "crlf": b"data: %b\r\n\r\ndata: %b\r\n\r\ndata: [DONE]\r\n\r\n",
    "cr": b"data: %b\r\rdata: %b\r\rdata: [DONE]\r\r",
    "mixed line ends": b"data: %b\r\n\ndata: %b\n\r\ndata: [DONE]\r\r\n",
    "no space": b"data:%b\n\ndata:%b\n\ndata:[DONE]\n\n",
    "comments": b": ping\n\ndata: %b\n\n: ping\n: pong\n\ndata: %b\n\n:\n\ndata: [DONE]\n\n",
    "comment inside an event": b": a\ndata: %b\n: b\n\n: c\ndata: %b\n\ndata: [DONE]\n\n",
    "other fields": b"event: message\nid: 7\ndata: %b\nretry: 3\n\nevent: x\ndata: %b\n\ndata: [DONE]\n\n",
    "many blank lines": b"\n\n\ndata: %b\n\n\n\n\ndata: %b\n\n\ndata: [DONE]\n\n\n",
    "byte order mark": b"\xef\xbb\xbfdata: %b\n\ndata: %b\n\ndata: [DONE]\n\n",
    "no blank line at the end": b"data: %b\n\ndata: %b\n\ndata: [DONE]",
    "one line end at the end": b"data: %b\r\n\r\ndata: %b\r\n\r\ndata: [DONE]\r\n",
}


def payloads(*pieces: bytes) -> list[bytes]:
    reader = SseReader()
    return [payload for piece in pieces for payload in reader.feed(piece)] + reader.close()


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_events_split_at_any_byte_come_out_whole(look: bytes) -> None:
    stream = look % (FIRST, SECOND)
    expected = [FIRST, SECOND, DONE]
    assert payloads(stream) == expected
    assert payloads(*(stream[n : n + 1] for n in range(len(stream)))) == expected
    for cut in range(1, len(stream)):
        assert payloads(stream[:cut], stream[cut:]) == expected, f"cut at {cut}"


def test_an_event_is_returned_with_the_bytes_that_complete_it() -> None:
    reader = SseReader()
    assert reader.feed(b"data: 1\n\ndata: 2\n") == [b"1"]
    assert reader.feed(b"\ndata: 3\n\n") == [b"2", b"3"]


def test_data_lines_of_one_event_are_joined_by_line_feeds() -> None:
    assert payloads(b'data: {\ndata:  "a":\ndata: 1}\n\n') == [b'{\n "a":\n1}']


@pytest.mark.parametrize("body", [b'{"choices": []}', b' \n{\n\n"data: x": 1}\n', b'[{"error": {}}]'])
def test_a_body_of_plain_json_comes_out_as_one_payload(body: bytes) -> None:
    for cut in range(len(body)):
        (payload,) = payloads(body[:cut], body[cut:])
        assert json.loads(payload) == json.loads(body)


def test_a_large_event_in_many_pieces_is_read_in_linear_time() -> None:
    event = b'data: "' + b"x" * 5_000_000 + b'"\n\n'
    pieces = [event[n : n + 16_384] for n in range(0, len(event), 16_384)]
    assert payloads(*pieces) == [event[6:-2]]


@pytest.mark.parametrize("piece", [b"data: xxxxxxxx", b'{"a": "xxxxxxxx'])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    reader = SseReader(limit=100)
    with pytest.raises(EventTooLong):
        collections.deque((reader.feed(piece) for _ in range(100)), maxlen=0)
