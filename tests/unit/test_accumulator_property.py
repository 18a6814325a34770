"""Tool calls survive every unambiguous way of splitting them into fragments."""

from __future__ import annotations

import json
from random import Random

import pytest

from task.llm.accumulator import Accumulator
from task.llm.base import Finish
from task.llm.chat_chunks import tool_call_delta
from tests.support.streams import Stream, random_stream


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


@pytest.mark.system
def test_40000_streams_are_rebuilt_without_an_error() -> None:
    assert first_wrong(40_000, seed=2) is None


def test_the_generator_makes_every_style() -> None:
    random = Random(1)
    styles = [random_stream(random).style for _ in range(2_000)]
    assert {style.index for style in styles} == {"kept", "missing", "zero", "gaps"}
    assert {style.ids for style in styles} == {"first", "all", "late", "none", "empty"}
    assert {style.arguments for style in styles} == {"pieces", "whole", "object"}
    assert any(style.interleaved and style.names == "repeated" for style in styles)
