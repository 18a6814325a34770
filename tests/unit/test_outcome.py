"""The announced outcome is compared with the actual one."""

from __future__ import annotations

import json

import pytest

from task.conversation.messages import FunctionCall, ToolCall
from task.errors import ToolError
from task.permissions.decisions import Allowed, CallRequest, Decision
from task.permissions.icerc import ICERC, mismatch
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.tools import MadeTool, answering


@pytest.mark.parametrize(
    ("expected", "command", "result", "failed", "flagged"),
    [
        ("3 files are deleted", "rm *.tmp", "Deleted 4,812 files", False, "announced 3, the result says 4812"),
        ("3 files are deleted", "rm *.tmp", "Deleted 3 files in 2 s", False, ""),
        ("The 5 issues are closed", "close count = 5", "Closed 12", False, ""),
        ("Bob has a mail", "send_mail", "sent, id 77123", False, ""),
        ("It costs 10.50", "pay", "Paid 1,050.00", False, "announced 10.50, the result says 1050.00"),
        (
            "Bob has a mail",
            "send_mail",
            "Error: no such address",
            True,
            "The call failed. Expected was: Bob has a mail",
        ),
        ("", "send_mail", "Error: no", True, "that it succeeds"),
        ("", "send_mail", "ok", False, ""),
    ],
)
def test_failures_and_other_numbers_than_announced_are_flagged(
    expected: str, command: str, result: str, failed: bool, flagged: str
) -> None:
    note = mismatch(ICERC("", command, expected), result, failed=failed)
    assert flagged in note
    assert bool(note) == bool(flagged)


class Approving:
    """Allows every call as a person would who has seen its card."""

    async def decide(self, request: CallRequest) -> Decision:
        return Allowed("once", ICERC("", request.call.name, request.brief.expected_outcome))


async def test_an_outcome_other_than_approved_is_shown_in_the_stage_and_in_the_result() -> None:
    async def fail() -> str:
        raise ToolError("the disc is full")

    choice = RecordingChoice()
    box = Toolbox([answering("purge", "Deleted 4,812 files"), MadeTool("save", fail)], Approving())
    said = json.dumps({"expected_outcome": "3 files are deleted"})
    calls = [ToolCall("a", FunctionCall("purge", said)), ToolCall("b", FunctionCall("save", said))]
    purged, saved = await box.call_all(calls, choice, CALLER)
    texts = [getattr(result, "content", "") for result in (purged, saved)]
    assert texts[0].endswith(
        "[Not as the user approved it. The outcome is not what was expected: announced 3, the result says 4812.]"
    )
    assert "The call failed. Expected was: 3 files are deleted" in texts[1]
    assert ["**Not as approved:**" in stage.content for stage in choice.stages] == [True, True]
