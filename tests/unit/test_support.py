"""The test support itself: the fake clock, the OpenAPI check, scripted conversations, benchmark figures."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from task.llm.base import TextDelta, ToolCallDelta
from tests.benchmarks.figures import Figure, report
from tests.support.clock import FakeClock
from tests.support.openapi_document import faults, strict
from tests.support.scripts import load_conversations


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock, woken = FakeClock(100.0), list[tuple[str, float]]()

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.now()))

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
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
            "Told": {**OPEN},
            "Free": FREE,
        }
    },
}


def test_only_what_is_answered_is_closed() -> None:
    schemas = strict(DOCUMENT)["components"]["schemas"]
    assert {name: schema["additionalProperties"] for name, schema in schemas.items()} == {
        "Sent": True, "Part": True, "Told": False, "Free": True,
    }  # fmt: skip


def test_a_field_that_is_not_described_is_a_fault() -> None:
    assert faults(DOCUMENT, "Told", {"a": 1}) == []
    assert "'c'" in faults(DOCUMENT, "Told", {"a": 1, "c": 2})[0]


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
    ("figure", "missed"),
    [
        (Figure("without a goal", 9.0, "ms"), False),
        (Figure("at its goal", 1.0, "ms", 1.0), False),
        (Figure("a quarter over its goal", 1.25, "ms", 1.0), False),
        (Figure("more than a quarter over", 1.26, "ms", 1.0), True),
        (Figure("enough of them", 300, "pages/s", 300, at_least=True), False),
        (Figure("far too few of them", 230, "pages/s", 300, at_least=True), True),
        (Figure("slow on a slow machine", 30, "µs", 15, bare=5, bare_goal=7), False),
        (Figure("a bad ratio on a fast machine", 14, "µs", 15, bare=1, bare_goal=7), False),
        (Figure("slow on any machine", 40, "µs", 15, bare=2, bare_goal=7), True),
        (Figure("on a machine too busy to tell", 9.0, "ms", 1.0, judged=False), False),
    ],
    ids=lambda value: value.name if isinstance(value, Figure) else "",
)
def test_a_figure_misses_its_goal_by_more_than_a_quarter(figure: Figure, missed: bool) -> None:
    assert figure.missed is missed


def test_a_check_fails_and_names_what_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECK", raising=False)
    figures = [Figure("good", 1.0, "ms", 1.0), Figure("bad", 2.0, "ms", 1.0), Figure("worse", 3.0, "ms", 1.0)]
    report(figures)
    monkeypatch.setenv("CHECK", "1")
    with pytest.raises(SystemExit, match=r"25% over the goal: bad; worse$"):
        report(figures)


def test_a_row_shows_value_goal_ratio_and_the_peers_quoted_figures(capsys: pytest.CaptureFixture[str]) -> None:
    report([Figure("relay", 40, "µs", 15, bare=2.5, bare_goal=7, peers={"others": 105})])
    row, quoted = capsys.readouterr().out.splitlines()
    assert " ".join(row.split()) == "! relay 40 µs goal ≤ 15 16.0 × bare 2.5 (goal ≤ 7 ×)"
    assert quoted.strip() == "quoted: others 105"


def test_programs_get_one_json_object_per_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JSON", "1")
    report([Figure("relay", 40, "µs", 15, bare=2.5), Figure("memory", 90, "MB")])
    relay, memory = map(json.loads, capsys.readouterr().out.splitlines())
    assert (relay["name"], relay["ratio"], relay["goal"]) == ("relay", 16.0, 15)
    assert (memory["value"], "goal" in memory) == (90, False)
