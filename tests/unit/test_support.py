"""The test support itself: clock, OpenAPI check, scripted conversations, benchmark figures, and the test upstream."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from task.llm.base import TextDelta, ToolCallDelta
from task.llm.scripted import says, wants
from tests.benchmarks.figures import Figure, report
from tests.support.clock import FakeClock
from tests.support.openapi_document import faults, strict
from tests.support.scripts import load_conversations
from tests.support.upstream import Upstream, openai_upstream


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock, woken = FakeClock(100.0), list[tuple[str, float]]()

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.now()))

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(sleeper("slow", 5.0))
        group.create_task(sleeper("often", 2.0, 2.0))
        await clock.advance(1.0)
        assert (woken, clock.now()) == ([], 101.0)
        await clock.advance(3.5)
        assert woken == [("often", 102.0), ("often", 104.0)]
        await clock.advance(10.0)
    assert woken[-1] == ("slow", 105.0)
    assert clock.now() == 114.5


async def test_a_running_clock_moves_with_every_sleep() -> None:
    clock = FakeClock(runs=True)
    await clock.sleep(2.0)
    await clock.sleep(0.5)
    assert (clock.now(), clock.slept) == (2.5, [2.0, 0.5])


OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
SENT = {"$ref": "#/components/schemas/Sent"}
FREE = {"type": "object", "additionalProperties": True}
DOCUMENT: dict[str, Any] = {
    "paths": {"/": {"post": {"requestBody": {"content": {"application/json": {"schema": SENT}}}}, "get": {}}},
    "components": {
        "schemas": {
            "Sent": {**OPEN, "properties": {"b": {"$ref": "#/components/schemas/Part"}}},
            "Part": {**OPEN},
            "Described": {**OPEN},
            "Free": FREE,
        }
    },
}


def test_only_what_is_answered_is_closed() -> None:
    schemas = strict(DOCUMENT)["components"]["schemas"]
    assert {name: schema["additionalProperties"] for name, schema in schemas.items()} == {
        "Sent": True, "Part": True, "Described": False, "Free": True,
    }  # fmt: skip


def test_a_field_that_is_not_described_is_a_fault() -> None:
    assert faults(DOCUMENT, "Described", {"a": 1}) == []
    assert "'c'" in faults(DOCUMENT, "Described", {"a": 1, "c": 2})[0]


CONVERSATION = """
- name: two turns
  turns:
    - user: What is 25*47?
      attachments: [{title: report.csv, type: text/csv}]
      model:
        - {text: Let me see., call: [{tool: calculator, arguments: {expression: 25*47}}, {tool: clock}]}
        - {text: [11, 75]}
      tool_calls: [{tool: calculator, arguments: {expression: 25*47}}, {tool: clock}]
      answer: "1175"
    - user: Thanks
      model: [{text: $5 please}]
      answer: $5 please
"""


def test_a_file_gives_the_replies_of_all_turns_and_what_to_expect(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(CONVERSATION.replace("[11, 75]", '["11", "75"]'), encoding="utf-8")
    (conversation,) = load_conversations(tmp_path)
    assert conversation == load_conversations(tmp_path / "one.yaml")[0]
    first, second, third = conversation.replies()
    assert first.events == (
        TextDelta("Let me see."),
        ToolCallDelta(0, None, "calculator", {"expression": "25*47"}),
        ToolCallDelta(1, None, "clock", {}),
    )
    assert second.events == (TextDelta("11"), TextDelta("75"))
    assert third.events == (TextDelta("$5 please"),)
    assert [turn.answer for turn in conversation.turns] == ["1175", "$5 please"]
    assert [call.tool for call in conversation.turns[0].tool_calls] == ["calculator", "clock"]


def test_a_misspelt_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("- {name: x, turns: [{user: a, modle: [], answer: b}]}", encoding="utf-8")
    with pytest.raises(ValidationError, match="modle"):
        load_conversations(path)


@pytest.mark.parametrize(
    ("figure", "slow", "missed"),
    [
        (Figure("without a goal", 9.0, "ms"), 1, False),
        (Figure("at its goal", 1.0, "ms", 1.0), 1, False),
        (Figure("almost a tenth over its goal", 1.09, "ms", 1.0), 1, False),
        (Figure("more than a tenth over", 1.11, "ms", 1.0), 1, True),
        (Figure("over its own tolerance", 1.02, "ms", 1.0, tolerance=0.01), 1, True),
        (Figure("none, as it should be", 0, "", 0), 1, False),
        (Figure("one where none may be", 1, "", 0), 1, True),
        (Figure("slow on a slow machine", 1.9, "ms", 1.0), 2, False),
        (Figure("slow on a fast machine", 0.9, "ms", 1.0), 0.5, True),
        (Figure("enough of them", 300, "pages/s", 300, at_least=True), 1, False),
        (Figure("far too few of them", 270, "pages/s", 300, at_least=True), 1, True),
        (Figure("few of them on a slow machine", 140, "pages/s", 300, at_least=True), 2, False),
        (Figure("large on a slow machine too", 200, "MB", 150), 2, True),
        (Figure("a good ratio on a slow machine", 30, "µs", bare=5, bare_goal=7), 1, False),
        (Figure("a bad ratio on a slow machine", 40, "µs", bare=5, bare_goal=7), 9, True),
        (Figure("on a machine too busy to tell", 9.0, "ms", 1.0, judged=False), 1, False),
    ],
    ids=lambda value: value.name if isinstance(value, Figure) else "",
)
def test_a_figure_misses_its_goal_by_more_than_its_tolerance(figure: Figure, slow: float, missed: bool) -> None:
    assert figure.missed(slow) is missed


def test_no_second_figure_can_excuse_a_bad_ratio() -> None:
    with pytest.raises(ValueError, match="the ratio alone decides"):
        Figure("relay", 40, "µs", 15, bare=2.5, bare_goal=7)
    with pytest.raises(ValueError, match="nothing to be 7 times of"):
        Figure("relay", 40, "µs", bare_goal=7)
    with pytest.raises(ValueError, match="the most is 10%"):
        Figure("relay", 40, "µs", 15, tolerance=0.25)


def test_a_check_fails_and_names_what_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECK", raising=False)
    figures = [Figure("good", 1.0, "ms", 1.0), Figure("bad", 2.0, "ms", 1.0), Figure("worse", 3.0, "ms", 1.0)]
    report(figures, 1)
    monkeypatch.setenv("CHECK", "1")
    with pytest.raises(SystemExit, match=r"tolerance: bad; worse$"):
        report(figures, 1)
    report(figures, 3)


def test_a_row_shows_value_goal_ratio_and_the_peers_quoted_figures(capsys: pytest.CaptureFixture[str]) -> None:
    relay = Figure("relay", 40, "µs", bare=2.5, bare_goal=7, peers={"others": 105})
    report([relay, Figure("start", 1.5, "s", 1.0)], 2)
    first, quoted, second, machine = capsys.readouterr().out.splitlines()
    assert " ".join(first.split()) == "! relay 40 µs 16 × bare 2.5 (goal ≤ 7 ×)"
    assert quoted.strip() == "quoted: others 105"
    assert " ".join(second.split()) == "start 1.5 s goal ≤ 2"
    assert " ".join(machine.split()) == "calibration work ÷ the reference machine's 2"


def test_programs_get_one_json_object_per_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JSON", "1")
    report([Figure("relay", 40, "µs", 15, bare=2.5), Figure("memory", 90, "MB")])
    relay, memory, machine = map(json.loads, capsys.readouterr().out.splitlines())
    assert (relay["name"], relay["ratio"], relay["goal"]) == ("relay", 16.0, 15)
    assert relay["goal_here"] == pytest.approx(15 * machine["value"])
    assert (memory["value"], "goal" in memory) == (90, False)


USER = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED = {"role": "assistant", "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "tool_call_id": "a", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


async def asked(peer: Upstream, **body: Any) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session:
        url = f"{peer.url}/chat/completions"
        async with session.post(url, json={"model": "m", **body}) as response:
            return response.status, await response.json()


def with_call(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{}"} | changes}]}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "too short"),
    "a null": ({"messages": [USER], "temperature": None}, "null in temperature"),
    "stream options without a stream": ({"messages": [USER], "stream_options": {"include_usage": True}}, "stream_opt"),
    "empty tools": ({"messages": [USER], "tools": []}, "'tools'"),
    "tool choice without tools": ({"messages": [USER], "tool_choice": "auto"}, "tool_choice"),
    "a tool's name": ({"messages": [USER], "tools": [{"function": {"name": "a b"}}]}, "does not match"),
    "two tools of one name": ({"messages": [USER], "tools": [TOOL, TOOL]}, "used twice"),
    "an unknown role": ({"messages": [{"role": "bot", "content": "x"}]}, "role"),
    "no content": ({"messages": [{"role": "user"}]}, "content"),
    "an orphan tool message": ({"messages": [USER, ANSWERED]}, "preceding message"),
    "two answers to one call": ({"messages": [USER, ASKED, ANSWERED, ANSWERED]}, "preceding message"),
    "an unanswered call": ({"messages": [USER, ASKED]}, "no answer to: a"),
    "a call answered too late": ({"messages": [USER, ASKED, USER, ANSWERED]}, "no answer to: a"),
    "a tool message that is no text": ({"messages": [USER, ASKED, ANSWERED | {"content": None}]}, "must be a string"),
    "no calls": ({"messages": [USER, {"role": "assistant", "tool_calls": []}]}, "tool_calls"),
    "one id twice": ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL, CALL]}]}, "id of its own"),
    "a called name": ({"messages": [USER, with_call(name="a.b"), ANSWERED]}, "function name"),
    "arguments that are no object": ({"messages": [USER, with_call(arguments="[]"), ANSWERED]}, "arguments"),
    "arguments that are no JSON": ({"messages": [USER, with_call(arguments="{"), ANSWERED]}, "arguments"),
}


@pytest.mark.parametrize(("body", "words"), FAULTS.values(), ids=FAULTS)
async def test_an_invalid_request_is_refused(body: dict[str, Any], words: str) -> None:
    async with openai_upstream(then=says("never")) as peer:
        status, answer = await asked(peer, **body)
    assert status == 400
    assert words in answer["error"]["message"]


async def test_without_stream_the_answer_is_one_object() -> None:
    async with openai_upstream(says("Look: ") & wants("f", x=1)) as peer:
        status, answer = await asked(peer, messages=[USER, ASKED, ANSWERED], tools=[TOOL])
    assert status == 200
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "Look: "
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert (choice["finish_reason"], answer["usage"]["total_tokens"]) == ("tool_calls", 15)
    assert peer.requests[0].tools == ["f"]


async def test_an_answer_can_be_computed_from_what_arrived() -> None:
    async with openai_upstream(then=lambda received: says(received.last["content"].upper())) as peer:
        assert (await asked(peer, messages=[USER]))[1]["choices"][0]["message"]["content"] == "HI"


async def test_a_wrong_key_and_a_script_at_its_end_are_refused() -> None:
    async with openai_upstream(api_key="right") as peer:
        assert (await asked(peer, messages=[USER]))[0] == 401
    async with openai_upstream() as peer:
        status, answer = await asked(peer, messages=[USER])
    assert (status, answer["error"]["code"]) == (400, "script_exhausted")
