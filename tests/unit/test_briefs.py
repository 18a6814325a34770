"""A model's brief of its own call: requested where a person may have to approve, and compared with the outcome."""

import json
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall, user
from task.errors import ToolError
from task.llm.scripted import ScriptedModel, says, wants
from task.loop import ToolLoop
from task.permissions.decisions import Allowed, CallRequest, Decision, Effect
from task.permissions.icerc import ICERC, Brief, mismatch
from task.tools.base import split_brief
from task.tools.toolbox import Pending, Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.gating import CHANGES, READS, after_search, gate
from tests.support.tools import MadeTool, answering

SHAPE: dict[str, Any] = {"type": "object", "properties": {"to": {"type": "string"}}, "additionalProperties": False}


async def echo(**arguments: Any) -> str:
    return json.dumps(arguments)


def mail(effects: frozenset[Effect] = CHANGES, shape: dict[str, Any] = SHAPE) -> MadeTool:
    return MadeTool("send_mail", echo, shape, effects)


def call(**arguments: Any) -> ToolCall:
    return ToolCall("c1", FunctionCall("send_mail", json.dumps(arguments)))


@pytest.mark.parametrize(
    ("arguments", "brief"),
    [
        ({"to": "bob"}, Brief()),
        ({"to": "bob", "intent": "Tell him", "expected_outcome": "He knows"}, Brief("Tell him", "He knows")),
        ({"to": "bob", "icerc": {"intent": "Tell him", "expected_outcome": "He knows"}}, Brief("Tell him", "He knows")),
        ({"to": "bob", "icerc_full_text": "Intent: Tell him\nExpected outcome: OK"}, Brief("Tell him", "OK")),
        ({"to": "bob", "intent": 5}, Brief()),
    ],
)
def test_the_brief_is_taken_out_of_the_arguments(arguments: dict[str, Any], brief: Brief) -> None:
    made, found = split_brief(call(**arguments), SHAPE)
    assert (json.loads(made.function.arguments), found) == ({"to": "bob"}, brief)


@pytest.mark.parametrize("arguments", ['{"intent": ', '["intent"]', '"intent"', '{"to": "bob", "intent": "mine"}'])
def test_what_is_not_an_object_or_the_tool_defines_itself_is_left_to_the_tool(arguments: str) -> None:
    own = {"type": "object", "properties": {"to": {"type": "string"}, "intent": {"type": "string"}}}
    theirs = ToolCall("c1", FunctionCall("send_mail", arguments))
    assert split_brief(theirs, own) == (theirs, Brief())
    briefed = mail(shape=own).briefed_schema["function"]["parameters"]["properties"]
    assert "expected_outcome" in briefed
    assert briefed["intent"] == {"type": "string"}


def test_a_brief_is_requested_only_for_tools_that_write_and_only_if_a_person_may_be_asked() -> None:
    def asked(box: Toolbox) -> list[bool]:
        return ["intent" in tool["function"]["parameters"]["properties"] for tool in box.schemas()]

    tools = [mail(), MadeTool("read", echo, SHAPE, READS)]
    assert asked(Toolbox(tools, briefed=True)) == [True, False]
    assert asked(Toolbox(tools)) == [False, False]
    assert Toolbox(tools, briefed=True).schemas()[0] is tools[0].briefed_schema


async def test_the_tool_never_sees_the_brief_and_the_card_does() -> None:
    calls = [call(to="bob", intent=words) for words in ("Tell him", "Tell him all")]
    asked, other = await Toolbox([mail()], gate()).call_all(calls, RecordingChoice(), CALLER)
    ran, *_ = await Toolbox([mail()]).call_all(calls, RecordingChoice(), CALLER)
    assert isinstance(asked, Pending)
    assert isinstance(other, Pending)
    assert (asked.card.intent, asked.card.command) == ("Tell him", 'send_mail\nto = "bob"')
    assert asked.digest == other.digest  # it is the same call
    assert isinstance(ran, Message)
    assert ran.text() == '{"to": "bob"}'


async def test_the_gate_sees_the_live_conversation() -> None:
    class Looking:
        def __init__(self) -> None:
            self.tainted: list[bool] = []

        async def decide(self, request: CallRequest) -> Decision:
            self.tainted.append(request.context.tainted)
            return Allowed()

    looking = Looking()
    model = ScriptedModel(wants("read"), wants("read", to="again"), says("Done."))
    await ToolLoop(model, Toolbox([MadeTool("read", echo, SHAPE, READS)], looking)).run(
        [user("Go")], RecordingChoice(), CALLER
    )
    await Toolbox([mail()], looking).call_all([call()], RecordingChoice(), CALLER, messages=after_search())
    assert looking.tainted == [False, True, True]


@pytest.mark.parametrize(
    ("expected", "command", "result", "failed", "flagged"),
    [
        ("3 files are deleted", "rm *.tmp", "Deleted 4,812 files", False, "announced 3, the result says 4812"),
        ("3 files are deleted", "rm *.tmp", "Deleted 3 files in 2 s", False, ""),
        ("The 5 issues are closed", "close count = 5", "Closed 12", False, ""),
        ("Bob has a mail", "send_mail", "sent, id 77123", False, ""),
        ("It costs 10.50", "pay", "Paid 1,050.00", False, "announced 10.50, the result says 1050.00"),
        ("Bob has a mail", "send_mail", "Error: no", True, "The call failed. Expected was: Bob has a mail"),
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


@pytest.mark.fault("gate: an outcome other than announced")
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
