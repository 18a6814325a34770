"""A benchmark reports which figures miss their goals, and fails on them when requested."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.figures import Figure, report


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
