"""Stages as DIAL Chat can show them: two, and one that holds the rest."""

from __future__ import annotations

from task.dial.folding import FoldedChoice
from tests.support.choices import RecordingChoice


def test_the_third_stage_holds_all_further_ones() -> None:
    choice = RecordingChoice()
    folded = FoldedChoice(choice)
    stages = [folded.create_stage(f"step {number}") for number in range(1, 6)]
    for stage in stages:
        stage.open()
        stage.close()
    folded.close(failed=False)
    top = [stage.name for stage in choice.stages if stage.parent is None]
    assert top == ["step 1", "step 2", "Further steps"]
    assert [stage.name for stage in choice.stages if stage.parent] == ["step 3", "step 4", "step 5"]
    assert {stage.status for stage in choice.stages} == {"completed"}


def test_without_a_third_stage_there_is_nothing_to_hold() -> None:
    choice = RecordingChoice()
    folded = FoldedChoice(choice)
    folded.create_stage("only").open()
    folded.close(failed=True)
    assert [stage.name for stage in choice.stages] == ["only"]
