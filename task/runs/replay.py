"""Replay a trace offline, in the real loop with the recorded model and tools, or ask another model the same."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import orjson

from task.conversation.messages import FunctionCall, Message, Role, ToolCall
from task.errors import InvalidRequest, NotFound, ProviderError
from task.llm.base import TextDelta, ToolCallDelta
from task.llm.scripted import Reply, ScriptedModel
from task.loop import Limits, ToolLoop
from task.output.sinks import NullChoice
from task.permissions.decisions import Allowed, CallRequest, Decision, Deferred, Denied
from task.permissions.icerc import ICERC, RiskAssessment
from task.runs.request import RunCaller, RunOptions, RunRequest, session_title
from task.runs.traces import TraceRecorder, TraceStart
from task.store.trace_records import Trace, TracedDecision, TracedTurn
from task.tools.base import BaseTool, ToolSpec
from task.tools.models import Caller, ToolCallParams, nobody
from task.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from task.store.store import Store

SECONDS = 60.0
ENDLESS = 100_000


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first turn that differs between two runs, counted from 0, and what differs in it.

    `what` is "role", "content", "calls", "status", or "end" where one of them has no further turn.
    """

    turn: int
    what: str
    one: object
    other: object


async def replayed(trace: Trace) -> Trace:
    """The trace of another run of the loop, with the recorded answers, decisions and results.

    Raises:
        InvalidRequest: the trace was recorded without texts, or its run was broken off.
    """
    if not trace.content:
        raise InvalidRequest(f"{trace.trace_id} was kept without texts and cannot be replayed; see TRACE_CONTENT")
    if trace.status in ("running", "cancelled", "interrupted"):
        raise InvalidRequest(f"{trace.trace_id} is {trace.status}: a run that was interrupted cannot be replayed")
    asked = [message_of(turn) for turn in trace.turns[: trace.asked]]
    observer = TraceRecorder(None, TraceStart(trace.owner, trace.door, trace.model, asked=tuple(asked)), trace.trace_id)
    model = ScriptedModel(*_replies(trace), name=trace.model, keep_requests=False)
    results: defaultdict[str, deque[Message]] = defaultdict(deque)
    for call in trace.tool_calls:
        message = Message(Role.TOOL, call.result, tool_call_id=call.call_id, name=call.name, failed=call.failed)
        results[call.call_id].append(message)
    names = {call["name"] for turn in trace.turns for call in turn.tool_calls}
    tools = [_RecordedTool(name, results) for name in sorted(names)]
    toolbox = Toolbox(tools, _RecordedGate(trace.decisions))
    steps = ENDLESS
    if trace.status == "limited":  # the number of steps stands for whichever limit stopped the run
        made = {call.call_id for call in trace.tool_calls}  # calls in the last answer are not made
        answers = (turn for turn in trace.turns[trace.asked :] if turn.role == "assistant")
        steps = sum(any(call["id"] in made for call in turn.tool_calls) for turn in answers)
    loop = ToolLoop(model, toolbox, Limits(steps=steps), observer)
    async with asyncio.timeout(SECONDS):
        await loop.run(asked, NullChoice(), Caller("", nobody))
    return observer.trace()


def divergence(one: Trace, other: Trace) -> Divergence | None:
    """Where the runs first differ, ids, times and durations aside; None when they are the same."""
    for place, (mine, theirs) in enumerate(zip_longest(one.turns, other.turns)):
        if mine is None or theirs is None:
            return Divergence(place, "end", mine and _compared(mine), theirs and _compared(theirs))
        for what, value in _compared(mine).items():
            if value != (other_value := _compared(theirs)[what]):
                return Divergence(place, what, value, other_value)
    if one.status != other.status:
        return Divergence(len(one.turns), "status", one.status, other.status)
    return None


async def asked_again(store: Store, caller: RunCaller, trace_id: str, model: str) -> RunRequest:
    """The run that asks `model` the same, with the same options; its session is a branch where there was one.

    Raises:
        NotFound: the caller has no such trace.
        InvalidRequest: what was asked is not kept, or the run continues another one.
    """
    trace = await store.traces.get(caller.owner, trace_id)
    before, end = trace.history, trace.history + trace.asked
    if trace.session_id is not None:
        messages = (await store.sessions.get(trace.owner, trace.session_id)).messages
    elif before == 0 and trace.content:
        messages = tuple(map(message_of, trace.turns[:end]))
    else:
        raise InvalidRequest(f"the messages before {trace_id} are not kept, so it cannot be asked again")
    history, asked = messages[:before], messages[before:end]
    if not any(message.role is Role.USER for message in asked):
        raise InvalidRequest(
            f"{trace_id} continues another run, or its messages are gone; replay the run that was asked"
        )
    options = RunOptions("", model)
    with suppress(NotFound):
        options = await RunOptions.of_run(store, caller.owner, trace.run_id or "")
    options = replace(options, door="runs", model=model, experiment=None, previous=None, metadata={})
    if trace.session_id is not None:
        session = await store.sessions.branch(caller.owner, trace.session_id, len(history))
    else:
        session = await store.sessions.start(caller.owner, session_title(asked))
    return RunRequest(caller, options, asked, history, session)


def message_of(turn: TracedTurn) -> Message:
    """The message that the turn was."""
    calls = tuple(ToolCall(call["id"], FunctionCall(call["name"], call["arguments"])) for call in turn.tool_calls)
    return Message(Role(turn.role), turn.content, calls, turn.tool_call_id, turn.name)


def _replies(trace: Trace) -> list[Reply]:
    replies, broken = list[Reply](), list[TextDelta]()
    for turn in trace.turns[trace.asked :]:
        if turn.role != "assistant":
            continue
        text = [TextDelta(turn.content)] if isinstance(turn.content, str) and turn.content else []
        calls = enumerate(turn.tool_calls)
        deltas = [ToolCallDelta(place, call["id"], call["name"], call["arguments"]) for place, call in calls]
        if turn.usage is not None:
            replies.append(Reply((*text, *deltas, turn.usage)))
        else:  # the answer was broken off
            broken = broken or text
    if trace.status == "failed":
        replies.append(Reply((*broken, ProviderError(trace.error or "the model failed"))))
    return replies


class _RecordedTool(BaseTool):
    def __init__(self, name: str, results: dict[str, deque[Message]]) -> None:
        self.spec = ToolSpec(name, "Returns the recorded results.", {"type": "object"}, offloads=False)
        self._results = results

    async def _execute(self, tool_call_params: ToolCallParams) -> Message:
        return self._results[tool_call_params.tool_call.id].popleft()


class _RecordedGate:
    def __init__(self, decisions: Sequence[TracedDecision]) -> None:
        self._decisions = {decision.call_id: decision for decision in decisions}

    async def decide(self, request: CallRequest) -> Decision:
        recorded = self._decisions.get(request.call.id)
        if recorded is None or recorded.verdict == "allowed":
            return Allowed(recorded.by if recorded else "")
        if recorded.verdict == "denied":
            return Denied(recorded.reason)
        card: dict[str, Any] = {"intent": "", "command": "", "expected_outcome": "", **(recorded.card or {})}
        risk = RiskAssessment(**card.pop("risk_assessment", {}))
        return Deferred(ICERC(**card, risk_assessment=risk), "", recorded.reason)


def _compared(turn: TracedTurn) -> dict[str, object]:
    calls: list[dict[str, object]] = []
    for call in turn.tool_calls:
        arguments = call["arguments"]
        with suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments) if isinstance(arguments, str) else arguments
        calls.append({"name": call["name"], "arguments": arguments})
    return {"role": turn.role, "calls": calls, "content": turn.content or ""}
