"""The loop: what a run does to a conversation, and every way it can end."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, repaired, tool_message, user
from task.errors import ProviderError, ToolError
from task.llm.base import Finish, TextDelta, Usage, Waiting
from task.llm.scripted import Pause, Reply, ScriptedModel, says, wants
from task.loop import Limits, LoopObserver, RunOutcome, ToolLoop
from task.permissions.decisions import Allowed, CallRequest, Decision, Deferred, Denied
from task.permissions.icerc import ICERC
from task.tools.base import BaseTool
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.clock import FakeClock
from tests.support.tools import MadeTool, answering
from tests.support.waiting import until

ADD = answering("add", "4")


def loop(model: ScriptedModel, *tools: BaseTool, **limits: Any) -> ToolLoop:
    return ToolLoop(model, Toolbox(tools or (ADD,)), Limits(**limits))


async def run(
    running: ToolLoop, messages: list[Message] | None = None, choice: RecordingChoice | None = None
) -> RunOutcome:
    async with asyncio.timeout(20):
        return await running.run([user("2+2?")] if messages is None else messages, choice or RecordingChoice(), CALLER)


async def test_a_tool_result_reaches_the_model_its_answer_the_reader_and_all_of_it_the_conversation() -> None:
    model, choice, messages = ScriptedModel(wants("add"), says("It is ", "4.")), RecordingChoice(), [user("2+2?")]
    outcome = await run(loop(model), messages, choice)
    assert (outcome.status, outcome.answer.content, choice.content) == ("finished", "It is 4.", "It is 4.")
    assert (model.requests[1][-1].role, model.requests[1][-1].content) == (Role.TOOL, "4")
    assert [stage.status for stage in choice.stages] == ["completed"]
    assert [message.role for message in messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert outcome.added == tuple(messages[1:])


async def test_a_damaged_history_is_repaired_before_the_model_sees_it() -> None:
    model, call = ScriptedModel(says("Hello.")), ToolCall("c1", FunctionCall("add"))
    await run(loop(model), [user("Hi"), tool_message(call, "nobody asked"), assistant(None, [call]), user("And?")])
    roles = [message.role for message in model.requests[0]]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]
    assert "interrupted" in model.requests[0][2].text()


class Timed(LoopObserver):
    """Keeps the seconds that each answer of the model took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize(
    ("then", "statuses"),
    [
        (says("It is 4."), ("finished", "completed")),
        (wants("add"), ("finished", "completed")),
        (says("", reasoning="Hm.") & says("It is 4."), ("finished", "completed")),
        (Reply((ProviderError("There is no memory for it."),)), ("failed", "failed")),
    ],
    ids=["word", "call", "thought", "failure"],
)
async def test_what_the_model_waits_for_are_stages_of_their_own(then: Reply, statuses: tuple[str, str]) -> None:
    waiting, choice, timed = (
        Reply((Waiting("In line"), Waiting("Loading the model"), Pause(2.0))),
        RecordingChoice(),
        Timed(),
    )
    outcome = await run(replace(loop(ScriptedModel(waiting & then, says("4"))), observer=timed), choice=choice)
    first, second, *_ = choice.stages
    assert [stage.name.partition(" [")[0] for stage in (first, second)] == ["In line", "Loading the model"]
    assert (first.status, outcome.status, second.status) == ("completed", *statuses)
    assert all(seconds < 2.0 for seconds in timed.seconds)


async def test_at_the_limit_the_model_gives_its_last_answer_without_tools() -> None:
    asked = says("", usage=Usage(90, 20)) & wants("add")
    for limit, named in ({"steps": 1}, "the limit of 1 steps"), ({"run_tokens": 100}, "the limit of 100 tokens"):
        model = ScriptedModel(asked, says("This is as far as I got."))
        outcome = await run(loop(model, **limit))
        assert (outcome.status, outcome.answer.content) == ("limited", "This is as far as I got.")
        assert outcome.limit == named
        assert named in model.requests[-1][-1].text()


async def test_the_time_limit_ends_a_run_between_steps() -> None:
    clock = FakeClock()

    async def slow() -> str:
        await clock.advance(2000)
        return "done"

    model = ScriptedModel(wants("slow"), says("Out of time."))
    running = ToolLoop(model, Toolbox([MadeTool("slow", slow)]), Limits(), clock=clock.now)
    assert (await run(running)).limit == "the limit of 1500 seconds"


async def test_the_time_limit_stops_a_model_in_the_middle_and_keeps_what_was_said() -> None:
    model = ScriptedModel(says("Once upon a time ", "never reached", pause=60), says("There is more."))
    choice = RecordingChoice()
    outcome = await run(loop(model, run_seconds=0.5), choice=choice)
    assert (outcome.status, choice.content) == ("limited", "Once upon a time \n\nThere is more.")


@pytest.mark.fault("tool: a tool that hangs")
async def test_a_tool_that_hangs_is_stopped_and_the_run_continues() -> None:
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(wants("hang"), says("It hangs."))
    outcome = await run(loop(model, MadeTool("hang", hang, seconds=0.05)))
    assert outcome.status == "finished"
    assert "stopped after 0.05 s" in model.requests[1][-1].text()


@pytest.mark.parametrize(
    ("ending", "code"),
    [(ProviderError("gone", status_code=500), None), (Finish("content_filter"), "content_filter")],
    ids=["error", "filter"],
)
async def test_what_a_failing_model_wrote_and_called_stays(ending: ProviderError | Finish, code: str | None) -> None:
    messages, choice = [user("2+2?")], RecordingChoice()
    model = ScriptedModel(wants("add"), Reply((TextDelta("Half an ans"), ending)))
    outcome = await run(loop(model), messages, choice)
    assert isinstance(outcome.error, ProviderError)
    assert (outcome.status, outcome.error.code) == ("failed", code)
    assert (choice.content, [message.text() for message in messages[2:]]) == ("Half an ans", ["4", "Half an ans"])


@pytest.mark.parametrize("reply", [says(""), Reply((Finish("tool_calls"),))])
async def test_an_empty_answer_is_a_failure_and_after_a_call_the_end(reply: Reply) -> None:
    outcome = await run(loop(ScriptedModel(reply)))
    assert (outcome.status, str(outcome.error)) == ("failed", "The model gave an empty answer.")
    assert (await run(loop(ScriptedModel(wants("add"), says(""))))).status == "finished"


async def test_an_answer_cut_off_by_the_model_is_marked_and_stays_as_it_is() -> None:
    choice = RecordingChoice()
    cut = await run(loop(ScriptedModel(Reply((TextDelta("A long"), Finish("length"))))), choice=choice)
    assert (cut.status, cut.cut, choice.content) == ("finished", True, "A long")
    assert not (await run(loop(ScriptedModel(says("Done."))))).cut


async def test_cancelling_stops_the_tools_and_leaves_a_valid_conversation() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    model = ScriptedModel(wants("add") & wants("slow"))
    messages = [user("Go")]
    running = asyncio.create_task(run(loop(model, ADD, MadeTool("slow", slow)), messages))
    async with asyncio.timeout(20):
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert stopped.is_set()
    assert messages == repaired(messages)
    assert [message.text()[:10] for message in messages[-2:]] == ["4", "Error: thi"]


async def test_cancelling_a_model_keeps_the_text_that_the_user_has_read() -> None:
    messages, choice = [user("Tell me a story")], RecordingChoice()
    running = asyncio.create_task(run(loop(ScriptedModel(says("Once ", "upon", pause=60))), messages, choice))
    await until(lambda: choice.content)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert messages[-1] == assistant("Once ")


class Doorkeeper:
    """Defers calls of `risky` until it is opened, refuses `forbidden`, allows the rest."""

    def __init__(self) -> None:
        self.open = False

    async def decide(self, request: CallRequest) -> Decision:
        if request.call.name == "forbidden":
            return Denied("it is forbidden here")
        card = ICERC("", request.call.name, "")
        return Deferred(card, "digest") if request.call.name == "risky" and not self.open else Allowed()


async def test_a_run_waits_for_an_approval_after_the_other_calls_and_resumes_exactly_there() -> None:
    keeper, messages = Doorkeeper(), [user("Go")]
    model = ScriptedModel(wants("risky") & wants("add") & wants("forbidden"), says("All done."))
    tools = [ADD, answering("risky", "deleted"), answering("forbidden", "x")]
    running = ToolLoop(model, Toolbox(tools, keeper))
    outcome = await run(running, messages)
    assert (outcome.status, [item.call.name for item in outcome.pending]) == ("suspended", ["risky"])
    sum_, refusal = [message.text() for message in messages if message.role is Role.TOOL]
    assert sum_ == "4"
    assert "it is forbidden here" in refusal
    keeper.open = True
    outcome = await run(running, messages)
    assert (outcome.status, outcome.answer.content) == ("finished", "All done.")
    assert [message.text() for message in model.requests[1][2:]] == ["deleted", "4", refusal]
    assert [message.text() for message in outcome.added] == ["deleted", "All done."]


@pytest.mark.fault("calls: endless identical calls")
async def test_the_same_call_with_the_same_result_is_warned_of_and_then_withdrawn() -> None:
    model = ScriptedModel(then=lambda *_: wants("add"))
    await run(loop(model, answering("add", "4"), answering("other", "5"), steps=7))
    results = [request[-1].text() for request in model.requests[1:7]]
    assert ["gave the same result" in text for text in results] == [False, False, True, True, False, False]
    assert "withdrawn" in results[4]
    offered = [[tool["function"]["name"] for tool in tools] for tools in model.tools]
    assert (offered[4], offered[5]) == (["add", "other"], ["other"])
    assert "withdrawn for this turn" in results[5]


async def test_independent_calls_run_at_the_same_time() -> None:
    together = asyncio.Barrier(8)

    async def meet() -> str:
        async with asyncio.timeout(20):
            await together.wait()
        return "met"

    asked = wants("meet")
    for _ in range(7):
        asked = asked & wants("meet")
    model = ScriptedModel(asked, says("Done."))
    await run(loop(model, MadeTool("meet", meet)))
    assert {message.text().splitlines()[0] for message in model.requests[1][-8:]} == {"met"}


@pytest.mark.fault("calls: an unknown tool")
@pytest.mark.fault("tool: a tool that raises")
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (wants("unknown"), "There is no tool 'unknown'. Tools: strict, broken, refusing."),
        (wants("strict", number="two"), "'two' is not of type 'integer'"),
        (wants("strict"), "'number' is a required property"),
        (wants("broken"), "broken failed unexpectedly (reference "),
        (wants("refusing"), "Error: there is no such file; attach it again"),
    ],
)
async def test_whatever_goes_wrong_in_a_call_the_model_learns_what_to_do(call: Reply, sentence: str) -> None:
    async def broken(**_: Any) -> str:
        raise RuntimeError("secret detail")

    async def refusing(**_: Any) -> str:
        raise ToolError("there is no such file; attach it again")

    shape = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    tools = [answering("strict", "ok", shape=shape), MadeTool("broken", broken), MadeTool("refusing", refusing)]
    model, choice = ScriptedModel(call, says("Understood.")), RecordingChoice()
    outcome = await run(loop(model, *tools), choice=choice)
    answer = model.requests[1][-1]
    assert sentence in answer.text()
    assert "secret detail" not in answer.text()
    assert (outcome.status, [stage.status for stage in choice.stages]) == ("finished", ["failed"])
