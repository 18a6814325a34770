"""Stages of an answer: opened, closed safely, and folded from the third one on."""

import asyncio
import logging
from typing import Any

import pytest
from aidial_sdk.chat_completion import Choice, Status

from task.agent import FoldedChoice
from task.output.sinks import StageProcessor
from tests.support.choices import RecordingChoice


def chunks(queue: asyncio.Queue[Any]) -> list[dict[str, Any]]:
    """What the stages wrote into the stream, in order."""
    sent = [queue.get_nowait().to_dict() for _ in range(queue.qsize())]
    deltas = [chunk["choices"][0]["delta"].get("custom_content", {}) for chunk in sent]
    return [stage for delta in deltas for stage in delta.get("stages", [])]


@pytest.fixture
def queue() -> asyncio.Queue[Any]:
    return asyncio.Queue()


@pytest.fixture
def choice(queue: asyncio.Queue[Any]) -> Choice:
    choice = Choice(queue, 0)
    choice.open()
    return choice


async def test_an_opened_stage_can_be_written_to_at_once(choice: Choice, queue: asyncio.Queue[Any]) -> None:
    stage = StageProcessor.open_stage(choice, "File Extraction")
    stage.append_content("## Processing file\n")
    StageProcessor.close_stage_safely(stage)
    assert [chunk.get("name") or chunk.get("content") or chunk["status"] for chunk in chunks(queue)] == [
        "File Extraction", "## Processing file\n", "completed",
    ]  # fmt: skip


async def test_a_failed_stage_is_marked_as_failed(choice: Choice, queue: asyncio.Queue[Any]) -> None:
    stage = StageProcessor.open_stage(choice)
    StageProcessor.close_stage_safely(stage, failed=True)
    assert chunks(queue)[-1]["status"] == Status.FAILED


async def test_closing_twice_is_logged_and_does_not_raise(choice: Choice, caplog: pytest.LogCaptureFixture) -> None:
    stage = StageProcessor.open_stage(choice)
    StageProcessor.close_stage_safely(stage)
    with caplog.at_level(logging.WARNING):
        StageProcessor.close_stage_safely(stage)
    assert "could not be closed" in caplog.text


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


@pytest.mark.fault("start: a failed step among many")
def test_a_failed_step_fails_the_stage_that_holds_it() -> None:
    choice = RecordingChoice()
    folded = FoldedChoice(choice)
    for number in range(6):
        stage = StageProcessor.open_stage(folded, f"step {number}")
        StageProcessor.close_stage_safely(stage, failed=number in (0, 3, 4))
    folded.close(failed=False)
    [group] = [stage for stage in choice.stages if stage.name.startswith("Further steps")]
    assert (group.name, group.status) == ("Further steps (2 failed)", "failed")
    assert [stage.status for stage in choice.stages if stage.parent] == ["completed", "failed", "failed", "completed"]
